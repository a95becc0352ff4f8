-- job show: one job, with its issuer's name. Rows: one or none. Locks: none. Index: job_pkey.
select j.id, j.task, j.queue, j.status, j.args, j.priority, j.due_at, j.key, j.attempt, j.max_attempts, j.yields, j.owner, j.token, j.lineage,
    j.claimed_at, j.lease_until, j.schedule, j.nominal, j.result, j.error, j.reason, j.created_at, j.finished_at, i.name as issuer
from {schema}.job j cross join {schema}.issuer i
where j.id = %(id)s
