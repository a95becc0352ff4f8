-- lanes: which priorities the waiting jobs of some queues and tasks have, below a given one each, up to %(most)s each.
-- Rows: (queue, task, priority), higher ones of a task first; none: nothing waits. Locks: none. Index: job_ready, one look-up for each.
with recursive step as (
    select p.queue, p.task, 1 as number, (
        select j.priority from {schema}.job j
        where j.status = 'ready' and j.exclusive is null and j.queue = p.queue and j.task = p.task and j.priority < p.below
        order by j.priority desc, j.due_at, j.id limit 1
    ) as priority
    from unnest(%(queues)s::text[], %(tasks)s::text[], %(belows)s::bigint[]) p(queue, task, below)
    union all
    select s.queue, s.task, s.number + 1, (
        select j.priority from {schema}.job j
        where j.status = 'ready' and j.exclusive is null and j.queue = s.queue and j.task = s.task and j.priority < s.priority
        order by j.priority desc, j.due_at, j.id limit 1
    )
    from step s
    where s.priority is not null and s.number < %(most)s
)
select queue, task, priority from step where priority is not null order by queue, task, priority desc
