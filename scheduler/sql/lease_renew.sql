-- lease renew: extend named leases, all of a process's in one statement.
-- Rows: (name, token) of each lease that was extended; one that is missing is lost.
-- Locks: the leases' rows. Index: lease_pkey; rewrites none.
update {schema}.lease l
set lease_until = (select {schema}.clock())
    + make_interval(secs => (%(leases)s::float8[])[array_position(%(tokens)s::bigint[], l.token)])
where l.name = any(%(names)s::text[]) and l.token = any(%(tokens)s::bigint[]) and l.owner = %(owner)s
returning l.name, l.token
