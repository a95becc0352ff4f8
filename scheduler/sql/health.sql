-- health: what a doctor looks at besides the measures. real_clock is false where a test has put its own in place of the schema's.
-- Rows: one. Locks: none. Index: job_leased, revocation_open.
select
    (select count(*) from {schema}.job where status = 'leased' and lease_until < {schema}.clock() - interval '1 minute') as expired,
    (select count(*) from {schema}.schedule where not paused and next_at < {schema}.clock() - interval '5 minutes') as late_schedules,
    (select count(*) from {schema}.revocation where raised_at is null and revoked_at < {schema}.clock() - interval '1 minute') as unfenced,
    (select prosrc = 'select clock_timestamp()' from pg_proc where oid = to_regprocedure({clock_literal})) as real_clock,
    current_setting('fsync') as fsync, current_setting('full_page_writes') as full_page_writes, pg_is_in_recovery() as standby,
    extract(epoch from clock_timestamp())::float8 as clock
