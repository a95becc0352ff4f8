-- replay: dead or cancelled jobs run again, from their first attempt on. Key, arguments and the token's order stay: a token is never reset.
-- Rows: (id, told) of each job that is ready again; one that is missing is in another state, or a job with its key is alive.
-- Locks: the jobs' rows (take them with job_lock.sql first); waits for a concurrent insert of the same key, and fails if that commits.
-- Index: job_pkey; job_alive_key. The notification is a hint; it leaves at the commit.
with instant as materialized (select {schema}.clock() as now),
again as (
    update {schema}.job j
    set status = 'ready', attempt = 0, yields = 0, due_at = (select now from instant), error = null, reason = null, finished_at = null
    where j.id = any(%(ids)s::bigint[]) and j.status in ('dead', 'cancelled')
        and (j.key is null or j.key_forever or not exists (
            select from {schema}.job a
            where a.key = j.key and not a.key_forever and a.status in ('ready', 'leased')))
    returning j.id, j.queue
)
select id, pg_notify({channel_literal}, queue) as told from again
