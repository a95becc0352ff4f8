-- job attempts: every attempt that ended, oldest first. Rows: one per claim. Locks: none. Index: attempt_pkey.
select attempt, outcome, owner, token, lineage, claimed_at, ended_at, error
from {schema}.attempt
where job_id = %(id)s
order by ended_at, token
