-- enqueue forever: one job, unless its key was ever used so. The key's own row decides, which no retention ever removes; it is not the row that
-- decides for keys that are unique while alive: the two kinds do not look at each other.
-- Rows: (id, created). None: the key is in a transaction that this one cannot see yet; ask again.
-- Locks: waits for a concurrent insert of the same key. Index: forever_key_pkey. The notification is a hint; it leaves at the commit. What is due
-- within a second is told of, too: a worker that rests would not look before it is due.
-- The empty message to the log: see enqueue.sql.
with instant as materialized (select {schema}.clock() as now),
spent as (
    insert into {schema}.forever_key (key, job_id, created_at)
    select %(key)s, nextval(pg_get_serial_sequence({job_literal}, 'id')), now
    from instant
    on conflict (key) do nothing
    returning job_id
),
made as (
    insert into {schema}.job (id, queue, task, args, priority, due_at, key, key_forever, exclusive, max_attempts, trace,
        created_at)
    overriding system value
    select job_id, %(queue)s, %(task)s, %(args)s::jsonb, %(priority)s, coalesce(%(due_at)s::timestamptz, now), %(key)s, true,
        %(exclusive)s, %(max_attempts)s, %(trace)s::jsonb, now
    from spent, instant
    returning id, due_at
)
select id, true as created,
    case when due_at <= (select now from instant) + interval '1 second' then pg_notify({channel_literal}, %(queue)s) end as told
from made
union all
select job_id, false, null from (
    select job_id, pg_logical_emit_message(true, 'fencing', '') from {schema}.forever_key
    where key = %(key)s and not exists (select from made)
) known
