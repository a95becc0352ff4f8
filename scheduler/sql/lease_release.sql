-- lease release: by token, so that a late release never frees the next holder. Rows: (name), or none if the lease is lost.
-- Locks: the lease's row. Index: lease_pkey.
delete from {schema}.lease where name = %(name)s and owner = %(owner)s and token = %(token)s
returning name
