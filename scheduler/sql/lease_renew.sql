-- lease renew: extend named leases, all of a process's in one statement.
-- Rows: (name, token) of each lease that was extended; one that is missing is lost.
-- Locks: the leases' rows. Index: lease_pkey; rewrites none.
update {schema}.lease l
set lease_until = (select {schema}.clock()) + make_interval(secs => s.lease)
from unnest(%(names)s::text[], %(tokens)s::bigint[], %(leases)s::float8[]) s(name, token, lease)
where l.name = s.name and l.token = s.token and l.owner = %(owner)s
returning l.name, l.token
