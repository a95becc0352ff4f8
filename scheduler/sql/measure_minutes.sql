-- measure minutes: what the workers measured in the last hour, and which of it lies in the last %(window)s seconds.
-- Rows: one per minute, worker, queue and task with anything to tell. Locks: none. Index: measure_pkey, one range.
select minute >= date_trunc('minute', (select {schema}.clock()) - make_interval(secs => %(window)s)) as recent, queue, task, claimed,
    lag, lag_sum, lag_most, run, run_sum, run_most, outcomes, refused, lost
from {schema}.measure
where minute >= (select {schema}.clock() - interval '1 hour')
