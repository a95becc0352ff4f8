-- rescue: take back up to %(batch)s jobs whose lease ran out. One statement, conditional on state and expiry, so that a sweep that comes late
-- resurrects nothing. A rescue counts as an attempt: after the last one the job is dead.
-- Rows: (id, token, lineage, owner, attempt, state, task, issuer, queue) of each job taken back; none: nothing has expired.
-- Locks: the expired rows, skipping those that others are rescuing or settling. Index: job_leased, then job_pkey.
with instant as materialized (select {schema}.clock() as now),
rescued as (
    update {schema}.job j
    set status = case when j.attempt >= j.max_attempts then 'dead' else 'ready' end,
        error = 'lease expired',
        reason = case when j.attempt >= j.max_attempts then 'lease expired' end,
        finished_at = case when j.attempt >= j.max_attempts then (select now from instant) end
    where j.id = any(array(
            select id from {schema}.job
            where status = 'leased' and lease_until < (select now from instant)
                and queue = any(%(queues)s::text[]) and task = any(%(tasks)s::text[])
            order by id
            limit %(batch)s
            for update skip locked
        ))
        and j.status = 'leased'
        and j.lease_until < (select now from instant)
    returning j.id, j.token, j.lineage, j.attempt, j.owner, j.claimed_at, j.status, j.task, j.queue
),
told as (
    insert into {schema}.attempt (job_id, token, lineage, attempt, owner, claimed_at, ended_at, outcome, error)
    select id, token, lineage, attempt, owner, claimed_at, (select now from instant), 'expired',
        'lease expired: the worker stopped, was paused or was cut off'
    from rescued
)
select id, token, lineage, owner, attempt, status, task, (select name from {schema}.issuer) as issuer, queue from rescued
