-- measure due exclusive: the same for exclusive jobs, which wait for each other: for each queue, task and value with due jobs, since when the oldest
-- of them has been due and how many are. It steps from value to value of the index, at most 1,000 of them, and looks at up to 100 jobs of each.
-- Rows: (queue, task, seconds since the oldest was due, due). Locks: none. Index: job_exclusive, some look-ups and one short range for each value.
with recursive instant as materialized (select {schema}.clock() as now),
ranges as (
    (
        select queue, task, exclusive, 1 as number from {schema}.job
        where status = 'ready' and exclusive is not null
        order by queue, task, exclusive
        limit 1
    )
    union all
    select following.queue, following.task, following.exclusive, r.number + 1
    from ranges r
    cross join lateral (
        select * from (
            select queue, task, exclusive from {schema}.job
            where status = 'ready' and exclusive is not null and queue = r.queue and task = r.task and exclusive > r.exclusive
            order by queue, task, exclusive
            limit 1
        ) next_value
        union all
        select * from (
            select queue, task, exclusive from {schema}.job
            where status = 'ready' and exclusive is not null and queue = r.queue and task > r.task
            order by queue, task, exclusive
            limit 1
        ) next_task
        union all
        select * from (
            select queue, task, exclusive from {schema}.job
            where status = 'ready' and exclusive is not null and queue > r.queue
            order by queue, task, exclusive
            limit 1
        ) next_queue
        limit 1
    ) following
    where r.number < 1000
)
select r.queue, r.task, extract(epoch from (select now from instant) - d.oldest)::float8 as waited, d.due
from ranges r
cross join lateral (
    select min(due_at) as oldest, count(*) as due from (
        select j.due_at from {schema}.job j
        where j.status = 'ready' and j.exclusive is not null and j.queue = r.queue and j.task = r.task and j.exclusive = r.exclusive
        order by j.queue, j.task, j.exclusive, j.priority desc, j.due_at, j.id
        limit 100
    ) first
    where due_at <= (select now from instant)
) d
where d.due > 0
