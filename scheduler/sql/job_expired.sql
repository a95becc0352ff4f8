-- job expired: which of these jobs had a holder whose lease ran out? It may be at work to this day, and has heard of nothing.
-- Rows: (job_id) of each that had one; none: no lease of theirs ran out. Locks: none. Index: attempt_pkey.
select distinct job_id from {schema}.attempt where job_id = any(%(ids)s::bigint[]) and outcome = 'expired'
