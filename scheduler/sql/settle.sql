-- settle: end attempts otherwise than by completion: retry after a delay, yield, return unstarted, or bury.
-- Rows: (id) of each job that was settled; a job that is missing was settled before or is lost (ask settled_before.sql).
-- Locks: the jobs' rows, in index order. Index: job_pkey; writes job_ready, attempt_pkey.
-- A yield and a return give the attempt back; the attempt row keeps the number that it had.
with instant as materialized (select {schema}.clock() as now),
settled as (
    update {schema}.job j
    set status = (%(states)s::text[])[array_position(%(ids)s::bigint[], j.id)],
        attempt = j.attempt - (%(uncounted)s::int[])[array_position(%(ids)s::bigint[], j.id)],
        yields = j.yields + (%(yields)s::int[])[array_position(%(ids)s::bigint[], j.id)],
        due_at = case
            when (%(delays)s::float8[])[array_position(%(ids)s::bigint[], j.id)] is null then j.due_at
            else (select now from instant)
                + make_interval(secs => (%(delays)s::float8[])[array_position(%(ids)s::bigint[], j.id)])
        end,
        error = coalesce((%(errors)s::text[])[array_position(%(ids)s::bigint[], j.id)], j.error),
        reason = (%(reasons)s::text[])[array_position(%(ids)s::bigint[], j.id)],
        finished_at = case
            when (%(states)s::text[])[array_position(%(ids)s::bigint[], j.id)] = 'ready' then null
            else (select now from instant)
        end
    where j.id = any(%(ids)s::bigint[])
        and j.token = (%(tokens)s::bigint[])[array_position(%(ids)s::bigint[], j.id)]
        and j.owner = %(owner)s
        and j.status = 'leased'
    returning j.id, j.token, j.lineage, j.attempt, j.owner, j.claimed_at
)
insert into {schema}.attempt (job_id, token, lineage, attempt, owner, claimed_at, ended_at, outcome, error)
select id, token, lineage,
    attempt + (%(uncounted)s::int[])[array_position(%(ids)s::bigint[], id)],
    owner, claimed_at, (select now from instant),
    (%(outcomes)s::text[])[array_position(%(ids)s::bigint[], id)],
    (%(errors)s::text[])[array_position(%(ids)s::bigint[], id)]
from settled
returning job_id
