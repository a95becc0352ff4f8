-- revocations why: were these tokens taken away from outside, and by whom? Rows: (revoked, outcome, actor, reason); one that is missing was
-- rescued, or settled. Locks: none. Index: revocation_pkey.
select revoked, outcome, actor, reason from {schema}.revocation where revoked = any(%(tokens)s::bigint[])
