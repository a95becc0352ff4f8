-- settle: end attempts otherwise than by completion: retry after a delay, yield, return unstarted, or bury. ends: by token, how. ids as in
-- complete.sql.
-- Rows: (token) of each job that was settled; a job that is missing was settled before or is lost (ask settled_before.sql).
-- Locks: the jobs' rows, in index order. Index: job_leased or job_pkey; writes job_ready, attempt_pkey.
-- A yield and a return give the attempt back; the attempt row keeps the number that it had.
with instant as materialized (select {schema}.clock() as now),
settled as (
    update {schema}.job j
    set (status, attempt, yields, due_at, error, reason, finished_at) = (
        select e.state, j.attempt - e.uncounted, j.yields + e.yielded,
            case when e.delay is null then j.due_at else (select now from instant) + make_interval(secs => e.delay) end,
            coalesce(e.error, j.error), e.reason, case when e.state <> 'ready' then (select now from instant) end
        from jsonb_to_record(%(ends)s::jsonb -> j.token::text)
            e(state text, uncounted int, yielded int, delay float8, error text, reason text)
    )
    where j.id = any(%(ids)s::bigint[]) and j.token = (%(tokens)s::bigint[])[width_bucket(j.id, %(ids)s::bigint[])] and j.owner = %(owner)s and j.status = 'leased'
    returning j.id, j.token, j.lineage, j.attempt, j.owner, j.claimed_at
)
insert into {schema}.attempt (job_id, token, lineage, attempt, owner, claimed_at, ended_at, outcome, error)
select s.id, s.token, s.lineage, s.attempt + e.uncounted, s.owner, s.claimed_at, (select now from instant), e.outcome, e.error
from settled s, jsonb_to_record(%(ends)s::jsonb -> s.token::text) e(uncounted int, outcome text, error text)
returning token
