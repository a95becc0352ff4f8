-- issuer change: a new lineage whose tokens start at %(floor)s or above everything this sequence gave, whichever is higher.
-- Rows: (lineage, floor). Locks: the row of issuer (already held). setval is visible at once, but no claim passes the identity check before
-- this transaction commits. Index: none; the table is one row.
with seed as materialized (
    select setval({token_literal}, greatest(%(floor)s::bigint, (select last_value + %(above)s::bigint from {schema}.token)), false)
        as floor
)
update {schema}.issuer
set lineage = gen_random_uuid()::text, identity = {schema}.identity(), floor = (select floor from seed),
    changed_at = (select {schema}.clock())
returning lineage, floor
