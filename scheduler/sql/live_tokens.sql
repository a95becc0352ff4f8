-- live tokens: which of these tokens belong to a lease that has not run out? Rows: (token).
-- Locks: none. Index: job_leased (the running jobs); lease is small.
select token from {schema}.job
where status = 'leased' and token = any(%(tokens)s::bigint[]) and lease_until >= (select {schema}.clock())
union all
select token from {schema}.lease
where token = any(%(tokens)s::bigint[]) and lease_until >= (select {schema}.clock())
