-- enqueue: one job, unless a job with the same key is alive.
-- Rows: (id, created). None: the job with that key is in a transaction that this one cannot see yet; ask again.
-- Locks: waits for a concurrent insert of the same key. Index: job_alive_key. The notification is a hint; it leaves at the commit. What is due
-- within a second is told of, too: a worker that rests would not look before it is due.
-- A job that is there may be so by a commit that no standby has yet (its server crashed while the commit waited). The empty message to the log makes
-- this commit wait for what stands before it: without one, a transaction that wrote nothing would answer at once, and a failover take the job away.
with instant as materialized (select {schema}.clock() as now),
made as (
    insert into {schema}.job (queue, task, args, priority, due_at, key, exclusive, max_attempts, trace, created_at)
    select %(queue)s, %(task)s, %(args)s::jsonb, %(priority)s, coalesce(%(due_at)s::timestamptz, now), %(key)s,
        %(exclusive)s, %(max_attempts)s, %(trace)s::jsonb, now
    from instant
    on conflict (key) where key is not null and not key_forever and status in ('ready', 'leased') do nothing
    returning id, due_at
)
select id, true as created,
    case when due_at <= (select now from instant) + interval '1 second' then pg_notify({channel_literal}, %(queue)s) end as told
from made
union all
select id, false, null from (
    select id, pg_logical_emit_message(true, 'fencing', '') from {schema}.job
    where key = %(key)s and not key_forever and status in ('ready', 'leased') and not exists (select from made)
) known
