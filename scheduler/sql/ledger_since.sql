-- ledger since: what the ledger has of a schedule from a key on (keys begin with the local time). Rows: (key, nominal).
-- Locks: none. Index: occurrence_pkey, a range of it.
select key, nominal from {schema}.occurrence where schedule = %(name)s and key >= %(since)s
