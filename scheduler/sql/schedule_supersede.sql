-- schedule supersede: withdraw what was put ahead of its due time and nobody has claimed: the jobs are cancelled, and the ledger forgets these
-- occurrences, for whoever computes them anew. What was due, or was claimed before, stays.
-- Rows: (withdrawn). Locks: the schedule's row (already held), its waiting jobs. Index: job_schedule, occurrence_pkey, occurrence_waiting.
with instant as materialized (select {schema}.clock() as now),
superseded as (
    update {schema}.job
    set status = 'cancelled', reason = %(reason)s, finished_at = (select now from instant)
    where schedule = %(name)s and status = 'ready' and token is null and due_at > (select now from instant)
    returning id, schedule, due_at
),
freed as (
    delete from {schema}.occurrence
    where schedule = %(name)s and due_at > (select now from instant)
        and (state = 'waiting' or job_id = any(array(select id from superseded)))
)
select count(*) from superseded
