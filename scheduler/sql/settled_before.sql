-- settled_before: of jobs that complete or settle did not find, which were settled by this very owner under this very token?
-- So a settlement whose reply was lost may be sent again. Rows: (job_id); all others are lost.
-- Locks: none. Index: attempt_pkey.
select a.job_id
from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) s(id, token)
join {schema}.attempt a on a.job_id = s.id and a.token = s.token
where a.owner = %(owner)s and a.outcome <> 'expired'
