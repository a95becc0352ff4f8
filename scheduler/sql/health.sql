-- health: what a doctor looks at besides the measures. oldest_transaction: seconds that the oldest one has been open that
-- keeps rows from being cleared away, of those that this role may see. real_clock is false where a test has put its own in place of the schema's.
-- Rows: one. Locks: none. Index: job_leased, revocation_open.
select
    (select count(*) from {schema}.job where status = 'leased' and lease_until < {schema}.clock() - interval '1 minute') as expired,
    (select count(*) from {schema}.schedule where not paused and next_at < {schema}.clock() - interval '5 minutes') as late_schedules,
    (select count(*) from {schema}.revocation where raised_at is null and revoked_at < {schema}.clock() - interval '1 minute') as unfenced,
    (select coalesce(max(extract(epoch from clock_timestamp() - since)), 0)::float8 from (
        select xact_start as since from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
            and (backend_xmin is not null or backend_xid is not null)
        union all
        select prepared from pg_prepared_xacts where database = current_database()
    ) open) as oldest_transaction,
    (select prosrc = 'select clock_timestamp()' from pg_proc where oid = to_regprocedure({clock_literal})) as real_clock,
    current_setting('fsync') as fsync, current_setting('full_page_writes') as full_page_writes, pg_is_in_recovery() as standby,
    extract(epoch from clock_timestamp())::float8 as clock
