-- measure write: what one worker measured in one minute (null: the present one), over what it wrote of that minute before, so that it may be sent
-- again; and that it is alive. Removes what is older than an hour, up to 1,000 rows.
-- Rows: one: the present minute, and the server's own clock. Locks: the worker's own rows; of old ones those that nobody else is removing.
-- Index: measure_pkey, worker_pkey. Not worth a wait for the disk: the commit is asynchronous.
with instant as materialized (select {schema}.clock() as now),
beat as (
    insert into {schema}.worker (owner, started_at, seen_at, queues, concurrency, running, clock_skew, listen_reconnects)
    select %(owner)s, now, now, %(queues)s::text[], %(concurrency)s, %(running)s, %(clock_skew)s, %(listen_reconnects)s from instant
    on conflict (owner) do update
    set seen_at = excluded.seen_at, queues = excluded.queues, concurrency = excluded.concurrency, running = excluded.running,
        clock_skew = excluded.clock_skew, listen_reconnects = excluded.listen_reconnects
),
written as (
    insert into {schema}.measure
        (minute, owner, queue, task, claimed, lag, lag_sum, lag_most, run, run_sum, run_most, outcomes, refused, lost)
    select coalesce(%(minute)s::timestamptz, (select date_trunc('minute', now) from instant)), %(owner)s, t.queue, t.task, t.claimed,
        t.lag, t.lag_sum, t.lag_most, t.run, t.run_sum, t.run_most, t.outcomes, t.refused, t.lost
    from jsonb_to_recordset(%(tallies)s::jsonb) t(queue text, task text, claimed bigint, lag bigint[], lag_sum float8, lag_most float8,
        run bigint[], run_sum float8, run_most float8, outcomes jsonb, refused bigint, lost bigint)
    on conflict (minute, owner, queue, task) do update
    set claimed = excluded.claimed, lag = excluded.lag, lag_sum = excluded.lag_sum, lag_most = excluded.lag_most, run = excluded.run,
        run_sum = excluded.run_sum, run_most = excluded.run_most, outcomes = excluded.outcomes, refused = excluded.refused,
        lost = excluded.lost
),
forgotten as (
    delete from {schema}.measure
    where ctid = any(array(
        select ctid from {schema}.measure
        where minute < (select now - interval '1 hour' from instant)
        order by minute
        limit 1000
        for update skip locked
    ))
),
gone as (
    delete from {schema}.worker
    where ctid = any(array(
        select ctid from {schema}.worker where seen_at < (select now - interval '1 hour' from instant) for update skip locked
    ))
)
select date_trunc('minute', now) as minute, extract(epoch from clock_timestamp())::float8 as clock,
    set_config('synchronous_commit', 'off', true)
from instant
