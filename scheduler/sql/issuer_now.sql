-- issuer_now: whether the issuer's identity is the live one: what a claim that found nothing could not say.
-- Rows: (current, name); none: the issuer was never installed. Locks: none. Index: none, the table has one row.
select identity = {schema}.identity() as current, name from {schema}.issuer
