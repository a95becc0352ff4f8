-- dead list: dead jobs in the order of their numbers, of these numbers, one task, queue, text of the error, or time of death where given.
-- Rows: up to %(most)s, those after the number %(after)s. Locks: none. Index: job_dead, from there on.
select id, task, queue, attempt, max_attempts, key, error, reason, finished_at, args
from {schema}.job
where status = 'dead' and id > %(after)s::bigint
    and (%(ids)s::bigint[] is null or id = any(%(ids)s))
    and (%(task)s::text is null or task = %(task)s)
    and (%(queue)s::text is null or queue = %(queue)s)
    and (%(error)s::text is null or position(%(error)s in concat_ws(' ', reason, error)) > 0)
    and (%(since)s::timestamptz is null or finished_at >= %(since)s)
order by id
limit %(most)s
