-- job lock: hold jobs still, to decide what becomes of them. In a statement of its own before the one that acts: what waited for a lock here reads
-- in the next statement what is there then.
-- Rows: (id, status, token, owner, attempt, task) of each job that exists, in the order of id.
-- Locks: the jobs' rows, in the order of id; waits for whoever claims, settles or rescues them. Index: job_pkey.
select j.id, j.status, j.token, j.owner, j.attempt, j.task
from {schema}.job j
where j.id = any(%(ids)s::bigint[])
order by j.id
for update
