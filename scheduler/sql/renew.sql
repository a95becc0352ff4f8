-- renew: extend the leases of running jobs, all of a worker's in one statement.
-- Rows: (token) of each job whose lease was extended; a job that is missing is lost: a renewal that comes late cannot revive it.
-- Locks: the jobs' rows, in index order. Index: job_leased or job_pkey; rewrites none (lease_until is in no index).
update {schema}.job j
set lease_until = (select {schema}.clock())
    + make_interval(secs => (%(leases)s::float8[])[array_position(%(tokens)s::bigint[], j.token)])
where j.id = any(%(ids)s::bigint[]) and j.token = any(%(tokens)s::bigint[]) and j.owner = %(owner)s and j.status = 'leased'
returning j.token
