-- complete: settle jobs whose handlers returned. The fence of the job's own row: id, owner, token and status.
-- Rows: (id) of each job that was completed; a job that is missing was settled before or is lost (ask settled_before.sql).
-- Locks: the jobs' rows, in the given order. Index: job_leased or job_pkey, one look-up a job (arrays are planned as ten rows); writes
--   attempt_pkey.
with instant as materialized (select {schema}.clock() as now),
settled as (
    update {schema}.job j
    set status = 'completed', result = s.result, finished_at = (select now from instant)
    from unnest(%(ids)s::bigint[], %(tokens)s::bigint[], %(results)s::jsonb[]) s(id, token, result)
    where j.id = s.id and j.token = s.token and j.owner = %(owner)s and j.status = 'leased'
    returning j.id, j.token, j.lineage, j.attempt, j.owner, j.claimed_at
)
insert into {schema}.attempt (job_id, token, lineage, attempt, owner, claimed_at, ended_at, outcome)
select id, token, lineage, attempt, owner, claimed_at, (select now from instant), 'completed' from settled
returning job_id
