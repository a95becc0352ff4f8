-- measure due: for each queue, task and priority with waiting jobs, since when the first of them has been due and how many are, counted up to
-- 1,000; of exclusive jobs measure_due_exclusive.sql tells. It steps from range to range of the index, at most 1,000 of them, and reads no waiting
-- job that is not due but the first of each.
-- Rows: (queue, task, seconds since the first was due, due). Locks: none. Index: job_ready, some look-ups for each range (the number of a queue and a task is taken for them).
with recursive instant as materialized (select {schema}.clock() as now),
ranges as (
    (
        select {schema}.pair(queue, task) as pair, queue, task, priority, due_at, 1 as number from {schema}.job
        where status = 'ready' and exclusive is null
        order by {schema}.pair(queue, task), priority desc, due_at, id
        limit 1
    )
    union all
    select following.pair, following.queue, following.task, following.priority, following.due_at, r.number + 1
    from ranges r
    cross join lateral (
        select * from (
            select {schema}.pair(queue, task) as pair, queue, task, priority, due_at from {schema}.job
            where status = 'ready' and exclusive is null and {schema}.pair(queue, task) = r.pair and priority < r.priority
            order by priority desc, due_at, id
            limit 1
        ) lower_priority
        union all
        select * from (
            select {schema}.pair(queue, task) as pair, queue, task, priority, due_at from {schema}.job
            where status = 'ready' and exclusive is null and {schema}.pair(queue, task) > r.pair
            order by {schema}.pair(queue, task), priority desc, due_at, id
            limit 1
        ) next_pair
        limit 1
    ) following
    where r.number < 1000
)
select r.queue, r.task, extract(epoch from (select now from instant) - r.due_at)::float8 as waited, d.due
from ranges r
cross join lateral (
    select count(*) as due from (
        select from {schema}.job j
        where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) = r.pair and j.priority = r.priority
            and j.due_at <= (select now from instant)
        limit 1000
    ) counted
) d
where r.due_at <= (select now from instant)
