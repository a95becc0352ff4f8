-- complete: settle jobs whose handlers returned. The fence of the job's own row: id, owner, token and status. ids are sorted (of one that comes twice
-- the newest token is last): each row finds its token by a binary search, and no join can be planned the wrong way round.
-- Rows: (token) of each job that was completed; a job that is missing was settled before or is lost (ask settled_before.sql).
-- Locks: the jobs' rows, in index order. Index: job_leased or job_pkey; writes attempt_pkey. results: JSON by token, null if there is none.
with instant as materialized (select {schema}.clock() as now),
settled as (
    update {schema}.job j
    set status = 'completed', result = %(results)s::jsonb -> j.token::text, finished_at = (select now from instant)
    where j.id = any(%(ids)s::bigint[]) and j.token = (%(tokens)s::bigint[])[width_bucket(j.id, %(ids)s::bigint[])] and j.owner = %(owner)s and j.status = 'leased'
    returning j.id, j.token, j.lineage, j.attempt, j.owner, j.claimed_at
)
insert into {schema}.attempt (job_id, token, lineage, attempt, owner, claimed_at, ended_at, outcome)
select id, token, lineage, attempt, owner, claimed_at, (select now from instant), 'completed' from settled
returning token
