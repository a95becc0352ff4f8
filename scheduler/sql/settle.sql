-- settle: end attempts otherwise than by completion: retry after a delay, yield, return unstarted, or bury.
-- Rows: (id) of each job that was settled; a job that is missing was settled before or is lost (ask settled_before.sql).
-- Locks: the jobs' rows, in the given order. Index: job_leased or job_pkey, one look-up a job; writes job_ready, attempt_pkey.
-- A yield and a return give the attempt back; the attempt row keeps the number that it had.
with instant as materialized (select {schema}.clock() as now),
settled as (
    update {schema}.job j
    set status = s.state,
        attempt = j.attempt - s.uncounted,
        yields = j.yields + s.yielded,
        due_at = case when s.delay is null then j.due_at else (select now from instant) + make_interval(secs => s.delay) end,
        error = coalesce(s.error, j.error),
        reason = s.reason,
        finished_at = case when s.state <> 'ready' then (select now from instant) end
    from unnest(
        %(ids)s::bigint[], %(tokens)s::bigint[], %(states)s::text[], %(outcomes)s::text[], %(uncounted)s::int[], %(yields)s::int[],
        %(delays)s::float8[], %(errors)s::text[], %(reasons)s::text[]
    ) s(id, token, state, outcome, uncounted, yielded, delay, error, reason)
    where j.id = s.id and j.token = s.token and j.owner = %(owner)s and j.status = 'leased'
    returning j.id, j.token, j.lineage, j.attempt + s.uncounted as attempt, j.owner, j.claimed_at, s.outcome, s.error
)
insert into {schema}.attempt (job_id, token, lineage, attempt, owner, claimed_at, ended_at, outcome, error)
select id, token, lineage, attempt, owner, claimed_at, (select now from instant), outcome, error from settled
returning job_id
