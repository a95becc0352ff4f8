-- measure stuck: jobs whose lease is renewed though they have been running for longer than is usual for their task: tasks and limits, in seconds;
-- %(otherwise)s for a task that is not among them. Rows: up to 100, those that have been running longest first.
-- Locks: none. Index: job_leased (the running jobs).
with instant as materialized (select {schema}.clock() as now)
select id, queue, task, attempt, owner, token, extract(epoch from (select now from instant) - claimed_at)::float8 as seconds
from {schema}.job
where status = 'leased' and lease_until >= (select now from instant)
    and claimed_at < (select now from instant) - make_interval(secs =>
        coalesce((%(limits)s::float8[])[array_position(%(tasks)s::text[], task)], %(otherwise)s))
order by claimed_at
limit 100
