-- measure workers: the workers that have been seen in the last hour, the newest first, up to 1,000. Rows: one per worker; silent: seconds since it was seen.
-- Locks: none. Index: none; the table is as small as the number of workers.
select owner, started_at, extract(epoch from (select {schema}.clock()) - seen_at)::float8 as silent, queues, concurrency, running, clock_skew,
    listen_reconnects
from {schema}.worker
order by started_at desc, owner
limit 1000
