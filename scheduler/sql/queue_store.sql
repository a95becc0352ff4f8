-- queue store: what an application says of a queue, if it is something new. Rows: none. Locks: waits for a concurrent write of the same queue.
-- Index: queue_pkey.
insert into {schema}.queue as q (name, acceptable_lag, changed_at)
values (%(name)s, %(acceptable_lag)s, (select {schema}.clock()))
on conflict (name) do update
set acceptable_lag = excluded.acceptable_lag, changed_at = excluded.changed_at
where q.acceptable_lag is distinct from excluded.acceptable_lag
