-- ledger has: which of these occurrences of a schedule are in the ledger. Rows: (key). Locks: none. Index: occurrence_pkey.
select key from {schema}.occurrence where schedule = %(name)s and key = any(%(keys)s::text[])
