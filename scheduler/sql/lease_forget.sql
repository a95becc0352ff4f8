-- lease forget: give back a named lease of which this process knows nothing: it was taken, and the answer got lost. Whoever asks holds up every other
-- of the process's questions for leases meanwhile, and none of its own has that name.
-- Rows: (name), or none if it was not this process's. Locks: the lease's row. Index: lease_pkey.
delete from {schema}.lease where name = %(name)s and owner = %(owner)s
returning name
