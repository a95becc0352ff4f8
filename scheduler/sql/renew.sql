-- renew: extend the leases of running jobs, all of a worker's in one statement.
-- Rows: (id) of each job whose lease was extended; a job that is missing is lost: a renewal that comes late cannot revive it.
-- Locks: the jobs' rows, in the given order. Index: job_leased or job_pkey; rewrites none (lease_until is in no index).
update {schema}.job j
set lease_until = (select {schema}.clock()) + make_interval(secs => s.lease)
from unnest(%(ids)s::bigint[], %(tokens)s::bigint[], %(leases)s::float8[]) s(id, token, lease)
where j.id = s.id and j.token = s.token and j.owner = %(owner)s and j.status = 'leased'
returning j.id
