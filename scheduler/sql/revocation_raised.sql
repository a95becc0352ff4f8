-- revocation raised: the fences of a revoked job are raised, or cannot be yet.
-- Rows: (revoked), or none if somebody else was there first. Locks: the row. Index: revocation_pkey.
-- error: why not; then it is tried again after delay seconds.
update {schema}.revocation
set raised_at = case when %(error)s::text is null then (select {schema}.clock()) end, error = %(error)s,
    next_at = (select {schema}.clock()) + make_interval(secs => %(delay)s)
where revoked = %(revoked)s and raised_at is null
returning revoked
