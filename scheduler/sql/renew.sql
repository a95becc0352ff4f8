-- renew: extend the leases of running jobs, all of a worker's in one statement. It waits for nobody: a row that somebody holds locked, a person
-- with an open transaction for example, must not cost the leases of the others.
-- Rows: (token, extended) of each lease that is still held; extended is false where the row is locked: nothing is known of it, ask again. One
--   that is missing is lost: a renewal that comes late cannot revive it. So is one whose lease ran out over 50 s ago, though nobody took the job: its
--   place in a queue with a limit is given away after a minute (see claim_guarded.sql), and a renewal that is under way then must not be too late.
-- Locks: the jobs' rows, skipping those that others hold. Index: job_leased or job_pkey; rewrites none (lease_until is in no index).
with mine as materialized (
    select token from {schema}.job
    where id = any(%(ids)s::bigint[]) and token = any(%(tokens)s::bigint[]) and owner = %(owner)s and status = 'leased'
        and lease_until >= (select {schema}.clock()) - interval '50 seconds'
),
renewed as (
    update {schema}.job j
    set lease_until = (select {schema}.clock())
        + make_interval(secs => (%(leases)s::float8[])[array_position(%(tokens)s::bigint[], j.token)])
    where j.id = any(array(
            select id from {schema}.job
            where id = any(%(ids)s::bigint[]) and token = any(%(tokens)s::bigint[]) and owner = %(owner)s and status = 'leased'
                and lease_until >= (select {schema}.clock()) - interval '50 seconds'
            for no key update skip locked
        ))
    returning j.token
)
select token, token in (select token from renewed) from mine
