-- issuer_now: whether the issuer's identity is the live one, and a turn to claim is free: what a claim that found nothing could not say.
-- Rows: (current, free); none: the issuer was never installed. Locks: a turn, for the length of this statement. Index: none, the table has one row.
select identity = {schema}.identity() as current, {turn} as free from {schema}.issuer
