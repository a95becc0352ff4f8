-- withdraw: end jobs that wait and that nobody runs: cancel or bury.
-- Rows: (id) of each job that was ended; one that is missing is not ready (any more).
-- Locks: the jobs' rows, in index order. Index: job_pkey.
update {schema}.job
set status = %(state)s, reason = %(reason)s, finished_at = (select {schema}.clock())
where id = any(%(ids)s::bigint[]) and status = 'ready'
returning id
