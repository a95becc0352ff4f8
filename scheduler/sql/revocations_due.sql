-- revocations due: take revoked jobs whose fences are still to be raised, of tasks that this worker knows. Taken means: nobody else tries in the next
-- half minute; raising twice does no harm.
-- Rows: (revoked) of up to %(batch)s revocations; none: nothing is open.
-- Locks: the rows, skipping those that others are taking. Index: revocation_open, then revocation_pkey.
update {schema}.revocation
set tries = tries + 1, next_at = (select {schema}.clock()) + interval '30 seconds'
where revoked = any(array(
        select revoked from {schema}.revocation
        where raised_at is null and next_at <= (select {schema}.clock()) and task = any(%(tasks)s::text[])
        order by next_at
        limit %(batch)s
        for update skip locked
    ))
returning revoked
