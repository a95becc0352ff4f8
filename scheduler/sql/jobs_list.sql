-- jobs list: the newest jobs, older than the one of the number %(before)s, of one state, task, queue or key where these are given.
-- Rows: up to %(most)s, newest first.
-- Locks: none. Index: job_pkey, read backwards; for a rare state it reads far, which a person may wait for.
select id, task, queue, status, attempt, max_attempts, priority, due_at, key, owner, token, reason
from {schema}.job
where (%(before)s::bigint is null or id < %(before)s)
    and (%(status)s::text is null or status = %(status)s)
    and (%(task)s::text is null or task = %(task)s)
    and (%(queue)s::text is null or queue = %(queue)s)
    and (%(key)s::text is null or key = %(key)s)
order by id desc
limit %(most)s
