-- The arm of the claim for ordinary jobs: one range of the index for each lane (queue, task and priority), from a bound on (due_at, id) up to now. So
-- jobs of other tasks and later ones cost nothing however many there are, nor do the entries that were claimed before (see _lanes.py).
-- How many a lane may give is found out first, without a lock: a claim locks no more rows than it takes, however many lanes there are.
-- Rows: (id, priority, due_at), in run order within a lane. Locks: the rows, skipping those that others hold. Index: job_ready, one range a lane.
select a.id, l.priority, a.due_at
from lane l cross join lateral (
    select j.id, j.due_at from {schema}.job j
    where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) = l.pair
        and j.queue = l.queue and j.task = l.task and j.priority = l.priority
        and (j.due_at, j.id) >= (l.due_at, l.id) and j.due_at <= (select now from instant)
    order by j.due_at, j.id
    limit case
        when (select count(*) from lane) = 1 then %(batch)s
        else coalesce((select most from quota where quota.number = l.number), 0)
    end
    for update skip locked
) a
