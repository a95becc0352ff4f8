-- outlook: what a claimer asks beside its claims, in one: what a claim that found nothing could not say (whether the issuer's identity is the live one,
-- and whether a turn to claim is free), whether there is anything that only the guarded claim takes (exclusive jobs that wait, or a queue with a limit:
-- where there is nothing, that claim would find it out too, at many times the cost), and whether there is anything for the gate to decide.
-- Rows: one (current, free, guarded, due, next_in): due, whether an occurrence that waits is due; next_in, the seconds until the next one is that is not
--   (null: none). None: the issuer was never installed.
-- Locks: a turn (see claim.sql), for the length of this statement.
-- Index: queue_pkey; job_exclusive_due, a look-up for each queue and task; occurrence_due, its ends. The issuer has one row.
-- The live identity is read by a subquery: see claim_lane.sql.
with instant as materialized (select {schema}.clock() as now)
select identity = (select {schema}.identity()) as current,
    {turn} as free,
    exists (select from {schema}.queue q where q.name = any(%(queues)s::text[]) and q.max_running is not null)
        or exists (
            select from unnest(%(queues)s::text[]) p(queue) cross join unnest(%(tasks)s::text[]) t(task)
            cross join lateral (
                select from {schema}.job j
                where j.status = 'ready' and j.exclusive is not null and j.queue = p.queue and j.task = t.task limit 1
            ) one
        ) as guarded,
    exists (select from {schema}.occurrence where state = 'waiting' and due_at <= (select now from instant)) as due,
    (
        select extract(epoch from min(due_at) - (select now from instant))::float8
        from {schema}.occurrence
        where state = 'waiting' and due_at > (select now from instant)
    ) as next_in
from {schema}.issuer
