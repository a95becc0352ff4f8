-- health: what a doctor looks at. Rows: one. Locks: none. Index: job_leased, job_ready, job_dead; the ready jobs that are overdue are counted
-- up to 10,000.
select
    (select count(*) from {schema}.job where status = 'leased' and lease_until < {schema}.clock() - interval '1 minute') as expired,
    (select count(*) from {schema}.job where status = 'leased' and claimed_at < {schema}.clock() - interval '1 hour') as long_running,
    (select count(*) from (select from {schema}.job where status = 'dead' limit 10000) dead) as dead,
    (select extract(epoch from {schema}.clock() - min(due_at))::float8 from {schema}.job
        where status = 'ready' and exclusive is null and due_at < {schema}.clock()) as oldest_due,
    (select count(*) from {schema}.schedule where not paused and next_at < {schema}.clock() - interval '5 minutes') as late_schedules,
    current_setting('synchronous_commit') as synchronous_commit, current_setting('fsync') as fsync,
    current_setting('full_page_writes') as full_page_writes, pg_is_in_recovery() as standby,
    extract(epoch from clock_timestamp())::float8 as clock, current_setting('server_version_num')::int as version
