-- The arm of the claim for ordinary jobs: one range of the index for each queue and task of the worker, so that jobs of other tasks cost nothing
-- however many there are. Queues with a limit are left to claim_guarded.sql.
-- Rows: (id, priority, due_at), in run order within a pair. Locks: the rows, skipping those that others hold. Index: job_ready, one range a pair.
select a.id, a.priority, a.due_at
from pair p cross join lateral (
    select j.id, j.priority, j.due_at from {schema}.job j
    where j.status = 'ready' and j.exclusive is null and j.queue = p.queue and j.task = p.task
        and j.due_at <= (select now from instant)
    order by j.priority desc, j.due_at, j.id
    limit %(batch)s
    for update skip locked
) a
where p.queue <> all(array(select name from {schema}.queue where max_running is not null))
