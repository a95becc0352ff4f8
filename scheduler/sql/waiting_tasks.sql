-- waiting tasks: the tasks that jobs wait for to run, by queue, up to %(most)s of ordinary and as many of exclusive jobs. Rows: (queue, task); none:
-- nothing waits. Locks: none. Index: job_ready and job_exclusive_due, one look-up for each row.
with recursive ordinary as (
    (
        select {schema}.pair(queue, task) as pair, queue, task, 1 as number from {schema}.job
        where status = 'ready' and exclusive is null
        order by {schema}.pair(queue, task), priority desc, due_at, id limit 1
    )
    union all
    select n.pair, n.queue, n.task, o.number + 1
    from ordinary o cross join lateral (
        select {schema}.pair(j.queue, j.task) as pair, j.queue, j.task from {schema}.job j
        where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) > o.pair
        order by {schema}.pair(j.queue, j.task), j.priority desc, j.due_at, j.id limit 1
    ) n
    where o.number < %(most)s
),
exclusive as (
    (
        select queue, task, 1 as number from {schema}.job
        where status = 'ready' and exclusive is not null
        order by queue, task, due_at limit 1
    )
    union all
    select n.queue, n.task, e.number + 1
    from exclusive e cross join lateral (
        select j.queue, j.task from {schema}.job j
        where j.status = 'ready' and j.exclusive is not null and (j.queue, j.task) > (e.queue, e.task)
        order by j.queue, j.task, j.due_at limit 1
    ) n
    where e.number < %(most)s
)
select queue, task from ordinary union select queue, task from exclusive order by queue, task
