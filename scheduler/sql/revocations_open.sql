-- revocations open: what is needed to raise the fences of revoked jobs: the jobs, with the tokens that were drawn when they were revoked.
-- Rows: (issuer, revoked, tries, actor, and the job as a claim returns it, with the drawn token) of each whose fences are not raised yet.
-- Locks: none. Index: revocation_pkey, job_pkey.
select i.name, r.revoked, r.tries, r.actor,
    j.id, r.token, r.lineage, j.task, j.queue, j.args::text, j.priority, j.due_at, j.attempt, j.max_attempts, j.yields, j.key, j.schedule, j.nominal,
    0.0::float8, j.trace, j.created_at
from {schema}.revocation r join {schema}.job j on j.id = r.job_id cross join {schema}.issuer i
where r.revoked = any(%(revoked)s::bigint[]) and r.raised_at is null
order by r.token
