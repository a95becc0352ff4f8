-- testing jobs: every job of a task, or all, with how its attempts ended, for the assertions of scheduler.testing. Rows: one per job, oldest first.
-- Locks: none. Index: none for the jobs, whose table is a test's and small; attempt_pkey.
select j.id, j.task, j.queue, j.status, j.args, j.priority, j.due_at, j.key, j.attempt, j.max_attempts, j.schedule, j.nominal, j.result, j.error,
    j.reason, j.created_at, j.finished_at,
    array(select a.outcome from {schema}.attempt a where a.job_id = j.id order by a.ended_at, a.token) as outcomes
from {schema}.job j
where %(task)s::text is null or j.task = %(task)s
order by j.id
