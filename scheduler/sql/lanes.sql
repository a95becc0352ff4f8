-- lanes: which priorities the waiting jobs of some queues and tasks have, below a given one each, up to %(most)s each; whether one of them is due, and
-- in how many seconds the next of them will be (null: none that is not due already, or its queue is full: whoever ends a job of it looks again).
-- Rows: (queue, task, priority, due, next_in), higher ones of a task first, and one with no priority for what only the guarded claim takes: the exclusive
--   jobs of each queue and task, and each queue with a limit, which has no task.
-- Locks: none. Index: job_ready, two look-ups for each; job_exclusive_due, two; job_leased where there are queues with a limit.
with recursive instant as materialized (select {schema}.clock() as now),
brim as materialized (
    select q.name from {schema}.queue q
    where q.max_running is not null and q.name = any(%(queues)s::text[])
        and q.max_running <= (
            select count(*) from {schema}.job j
            where j.status = 'leased' and j.queue = q.name and j.lease_until >= (select now from instant) - interval '1 minute'
        )
),
step as (
    select p.queue, p.task, 1 as number, first.priority, first.due_at
    from unnest(%(queues)s::text[], %(tasks)s::text[], %(belows)s::bigint[]) p(queue, task, below)
    cross join lateral (
        select j.priority, j.due_at from {schema}.job j
        where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) = {schema}.pair(p.queue, p.task)
            and j.queue = p.queue and j.task = p.task and j.priority < p.below
        order by j.priority desc, j.due_at, j.id limit 1
    ) first
    union all
    select s.queue, s.task, s.number + 1, first.priority, first.due_at
    from step s
    cross join lateral (
        select j.priority, j.due_at from {schema}.job j
        where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) = {schema}.pair(s.queue, s.task)
            and j.queue = s.queue and j.task = s.task and j.priority < s.priority
        order by j.priority desc, j.due_at, j.id limit 1
    ) first
    where s.number < %(most)s
),
upcoming as materialized (
    -- The first of a priority is the one that is due first.
    select s.queue, s.task, s.priority, s.due_at <= (select now from instant) as due,
        case when s.due_at > (select now from instant) then s.due_at else (
            select j.due_at from {schema}.job j
            where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) = {schema}.pair(s.queue, s.task)
                and j.queue = s.queue and j.task = s.task and j.priority = s.priority
                and j.due_at > (select now from instant)
            order by j.due_at, j.id limit 1
        ) end as due_at
    from step s
    union all
    select p.queue, p.task, null, null, (
        select j.due_at from {schema}.job j
        where j.status = 'ready' and j.exclusive is not null and j.queue = p.queue and j.task = p.task and j.due_at > (select now from instant)
        order by j.due_at limit 1
    )
    from unnest(%(queues)s::text[], %(tasks)s::text[]) p(queue, task)
    where (
        select j.due_at from {schema}.job j
        where j.status = 'ready' and j.exclusive is not null and j.queue = p.queue and j.task = p.task
        order by j.due_at limit 1
    ) is not null
    union all
    select q.name, null, null, null, null from {schema}.queue q where q.max_running is not null and q.name = any(%(queues)s::text[])
)
select queue, task, priority, due,
    case when queue <> all(array(select name from brim)) then extract(epoch from due_at - (select now from instant))::float8 end as next_in
from upcoming
order by queue, task, priority desc
