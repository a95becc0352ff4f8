-- guarded waits: whether there is anything that only the guarded claim takes (see claim_guarded.sql): exclusive jobs that wait, or a queue with a
-- limit. Where there is nothing, the guarded claim would find that out too, at many times the cost. A sweep hears it from lanes.sql.
-- Rows: one (waits). Locks: none. Index: job_exclusive_due, a look-up for each queue and task; queue_pkey.
select exists (select from {schema}.queue q where q.name = any(%(queues)s::text[]) and q.max_running is not null)
    or exists (
        select from unnest(%(queues)s::text[]) p(queue) cross join unnest(%(tasks)s::text[]) t(task)
        cross join lateral (
            select from {schema}.job j
            where j.status = 'ready' and j.exclusive is not null and j.queue = p.queue and j.task = t.task limit 1
        ) one
    )
