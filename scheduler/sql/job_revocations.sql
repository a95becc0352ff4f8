-- job revocations: each time that a job was taken from its holder, and whether its fences are raised. Rows: one per revocation, oldest first.
-- Locks: none. Index: revocation_job.
select revoked, token, outcome, actor, reason, revoked_at, raised_at, error
from {schema}.revocation
where job_id = %(id)s
order by token
