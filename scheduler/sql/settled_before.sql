-- settled_before: of jobs that complete or settle did not find, which were settled by this very owner under this very token?
-- So a settlement whose reply was lost may be sent again. Rows: (job_id); all others are lost.
-- Locks: none. Index: attempt_pkey.
select job_id from {schema}.attempt
where job_id = any(%(ids)s::bigint[])
    and token = (%(tokens)s::bigint[])[array_position(%(ids)s::bigint[], job_id)]
    and owner = %(owner)s
    and outcome <> 'expired'
