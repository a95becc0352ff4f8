-- enqueue many forever: jobs of one task, each unless its key was ever used so (or is among those before it): see enqueue_forever.sql.
-- Rows: (made): how many. One row always.
-- Locks: waits for concurrent inserts of the same keys, in the order of the keys, so that no two callers wait for each other.
-- Index: forever_key_pkey. The notification is a hint, also of what is due within a second; it leaves at the commit.
with instant as materialized (select {schema}.clock() as now),
given as materialized (
    select distinct on (key) *
    from unnest(%(args)s::text[], %(dues)s::timestamptz[], %(keys)s::text[], %(exclusives)s::text[]) with ordinality
        g(args, due_at, key, exclusive, number)
    where key is not null
    order by key, number
),
spent as (
    insert into {schema}.forever_key (key, job_id, created_at)
    select key, nextval(pg_get_serial_sequence({job_literal}, 'id')), now
    from (select key from given order by key collate "C") ordered, instant
    on conflict (key) do nothing
    returning key, job_id
),
made as (
    insert into {schema}.job (id, queue, task, args, priority, due_at, key, key_forever, exclusive, max_attempts, trace,
        created_at)
    overriding system value
    select s.job_id, %(queue)s, %(task)s, g.args::jsonb, %(priority)s, coalesce(g.due_at, now), g.key, true, g.exclusive,
        %(max_attempts)s, %(trace)s::jsonb, now
    from spent s join given g on g.key = s.key, instant
    returning due_at
)
select count(*) as made,
    case when bool_or(due_at <= (select now from instant) + interval '1 second') then pg_notify({channel_literal}, %(queue)s) end as told,
    case when count(*) = 0 then pg_logical_emit_message(true, 'fencing', '') end as waited -- see enqueue.sql
from made
