-- queue store: what an application says of a queue, if it is something new.
-- Rows: (max_running): the limit that it had (null for none); none: nothing was new. Locks: waits for a concurrent write of the same queue.
-- Index: queue_pkey.
with before as (select max_running from {schema}.queue where name = %(name)s),
stored as (
    insert into {schema}.queue as q (name, acceptable_lag, max_running, changed_at)
    values (%(name)s, %(acceptable_lag)s, %(limit)s, (select {schema}.clock()))
    on conflict (name) do update
    set acceptable_lag = excluded.acceptable_lag, max_running = excluded.max_running, changed_at = excluded.changed_at
    where (q.acceptable_lag, q.max_running) is distinct from (excluded.acceptable_lag, excluded.max_running)
    returning name
)
select (select max_running from before) from stored
