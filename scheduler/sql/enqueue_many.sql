-- enqueue many: jobs of one task, each unless a job with its key is alive (or is among those before it).
-- Rows: (made): how many. One row always.
-- Locks: waits for concurrent inserts of the same keys, in the order of the keys, so that no two callers wait for each other. Index: job_alive_key.
-- The notification is a hint, also of what is due within a second; it leaves at the commit.
with instant as materialized (select {schema}.clock() as now),
given as materialized (
    select *
    from unnest(%(args)s::text[], %(dues)s::timestamptz[], %(keys)s::text[], %(exclusives)s::text[]) with ordinality
        g(args, due_at, key, exclusive, number)
),
made as (
    insert into {schema}.job (queue, task, args, priority, due_at, key, exclusive, max_attempts, trace,
        created_at)
    select %(queue)s, %(task)s, g.args::jsonb, %(priority)s, coalesce(g.due_at, now), g.key, g.exclusive, %(max_attempts)s, %(trace)s::jsonb, now
    from given g, instant
    order by g.key collate "C", g.number
    on conflict (key) where key is not null and not key_forever and status in ('ready', 'leased') do nothing
    returning due_at
)
select count(*) as made,
    case when bool_or(due_at <= (select now from instant) + interval '1 second') then pg_notify({channel_literal}, %(queue)s) end as told,
    case when count(*) = 0 then pg_logical_emit_message(true, 'fencing', '') end as waited -- see enqueue.sql
from made
