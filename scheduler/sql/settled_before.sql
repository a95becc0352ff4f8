-- settled_before: of jobs that complete or settle did not find, which were settled by this very owner under this very token?
-- So a settlement whose reply was lost may be sent again; an attempt that somebody else ended (rescue, cancel, limit) is not one of these.
-- Rows: (token); all others are lost.
-- Locks: none. Index: attempt_pkey.
select token from {schema}.attempt
where job_id = any(%(ids)s::bigint[]) and token = any(%(tokens)s::bigint[]) and owner = %(owner)s and outcome in ({own_outcomes})
