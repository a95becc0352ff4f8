-- overrun: hold the running jobs that are over their task's run-time limit, counted from their claim, to take them away (revoke.sql) in the same
-- transaction.
-- Rows: (id, token, attempt, max_attempts, task) of up to %(batch)s jobs; none: nothing is over its limit.
-- Locks: the jobs' rows, skipping those that are just being settled, rescued or cancelled. Index: job_leased.
select id, token, attempt, max_attempts, task
from {schema}.job
where status = 'leased' and task = any(%(tasks)s::text[])
    and claimed_at < (select {schema}.clock()) - make_interval(secs => (%(limits)s::float8[])[array_position(%(tasks)s::text[], task)])
order by id
limit %(batch)s
for update skip locked
