-- pass on: wake the workers of some queues, as an enqueuing does: what ended freed an exclusive value or a place in a queue with a limit, perhaps, and
-- whoever ended it has no room for more. Rows: one for each queue. Locks: none. Index: none.
select pg_notify({channel_literal}, queue) as told from unnest(%(queues)s::text[]) queue
