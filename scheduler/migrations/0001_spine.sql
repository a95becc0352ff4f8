-- The scheduler's tables. {schema} is the quoted name of its schema.

-- The clock by which everything is decided. scheduler.testing replaces this function, nothing else ever does.
create function {schema}.clock() returns timestamptz language sql volatile as 'select clock_timestamp()';

-- A number for a queue and a task, as the index of ready jobs has it: with columns of fixed length alone it costs an enqueuing half of what it
-- costs with the names. Two pairs may share a number, which hardly ever happens; so the names are compared, too. Written into statements by the
-- planner, never called.
create function {schema}.pair(queue text, task text) returns bigint language sql immutable parallel safe
    as 'select pg_catalog.hashtextextended(queue, pg_catalog.hashtext(task))';

-- Tokens of all jobs and leases come from one sequence, so that any two that touch one resource compare.
create sequence {schema}.token as bigint cache 1;

-- What this server is right now. A token stays above every earlier one only while all of this is the same: another system
-- identifier or timeline is another history of the data, another start may have lost the sequence's last numbers, another
-- database or sequence is a copy. Parts that a managed engine withholds read "unavailable". Fails on a standby, as it should.
create function {schema}.identity() returns text language plpgsql stable as $$
declare
    system text := 'unavailable';
    timeline text := 'unavailable';
begin
    begin
        select system_identifier::text into system from pg_control_system();
    exception when insufficient_privilege or undefined_function or feature_not_supported then null;
    end;
    begin
        -- Not pg_control_checkpoint(): after a promotion that one still shows the old timeline.
        timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    exception when insufficient_privilege or undefined_function or feature_not_supported then null;
    end;
    return concat_ws(
        '/', system, timeline, to_char(pg_postmaster_start_time() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'),
        (select oid from pg_database where datname = current_database()), {schema_literal}::regnamespace::oid,
        to_regclass({token_literal})::oid);
end $$;

-- The issuer of tokens: one row. name never changes; lineage changes with the identity; floor is the first number after the
-- last change.
create table {schema}.issuer (
    singleton boolean primary key default true check (singleton),
    name text not null,
    lineage text not null,
    identity text not null,
    floor bigint not null,
    changed_at timestamptz not null
);

-- First what has a fixed length and is never null: the server reads such columns without stepping through a row.
create table {schema}.job (
    id bigint generated always as identity,
    due_at timestamptz not null,
    created_at timestamptz not null,
    priority integer not null,
    attempt integer not null default 0,
    max_attempts integer not null,
    yields integer not null default 0,
    -- Unique for ever by forever_key, not while alive by job_alive_key.
    key_forever boolean not null default false,
    status text not null default 'ready' check (status in ({states})),
    queue text not null,
    task text not null,
    args jsonb not null,
    owner text,
    token bigint,
    lineage text,
    claimed_at timestamptz,
    lease_until timestamptz,
    finished_at timestamptz,
    key text,
    -- At most one job of each value is leased.
    exclusive text,
    schedule text,
    nominal timestamp,
    result jsonb,
    error text,
    reason text,
    -- Of the enqueuing: W3C Trace Context, traceparent and tracestate.
    trace jsonb,
    -- Three versions of a job's row come to be, and each has its entry: with room for them a leaf is not searched for old ones again and again.
    primary key (id) with (fillfactor = 70)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);

-- Where a condition names a column that is null in most rows, it comes first: the rest is not looked at then.
-- In the order of the claim: one range per queue and task, so that a worker never reads past jobs that it cannot run.
create index job_ready on {schema}.job ({schema}.pair(queue, task), priority desc, due_at, id) where exclusive is null and status = 'ready';
-- The same for exclusive jobs, by value: the claim steps from one value to the next.
create index job_exclusive on {schema}.job (queue, task, exclusive, priority desc, due_at, id)
    where exclusive is not null and status = 'ready';
-- When the next of them is due.
create index job_exclusive_due on {schema}.job (queue, task, due_at) where exclusive is not null and status = 'ready';
-- Small: what is running now. Without lease_until, so that a renewal rewrites no index.
create index job_leased on {schema}.job (id, queue) where status = 'leased';
-- The claim sees to it by itself (see slot); this is what stands behind it.
create unique index job_exclusive_live on {schema}.job (exclusive) where exclusive is not null and status = 'leased';
-- A key is unique while its job is alive, unless it is unique for ever.
create unique index job_alive_key on {schema}.job (key) where key is not null and not key_forever and status in ('ready', 'leased');

create index job_dead on {schema}.job (id) where status = 'dead';
-- What lives of a schedule: jobs that wait or run.
create index job_schedule on {schema}.job (schedule) where schedule is not null and status in ('ready', 'leased');

-- Keys that are unique for ever: one row each, which outlives its job.
create table {schema}.forever_key (
    key text primary key,
    job_id bigint not null,
    created_at timestamptz not null
);

-- What claims of the same exclusive value or limited queue take turns on, by hash. claims grows with each of them, so that a claim can tell
-- whether its snapshot is still true. Nothing here says what is running.
create table {schema}.slot (
    number integer primary key,
    claims bigint not null
) with (fillfactor = 25, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
insert into {schema}.slot (number, claims) select number, 0 from generate_series(0, 1023) number;

-- What was done cannot be undone by writing over it. Whoever owns the tables can take the triggers away; nobody does it by mistake. The pruner deletes
-- what is older than its retention time, and says that it does.
create function {schema}.append_only() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' and tg_nargs > 0 and current_setting('fencing.pruning', true) = 'on' then
        return null;
    end if;
    raise exception '%.% is append-only: % is refused', tg_table_schema, tg_table_name, lower(tg_op)
        using errcode = 'insufficient_privilege';
end $$;
create trigger append_only before update or delete or truncate on {schema}.forever_key
    for each statement execute function {schema}.append_only();

-- Append-only: one row per claim, written by the statement that ended it.
create table {schema}.attempt (
    job_id bigint not null,
    token bigint not null,
    lineage text not null,
    attempt integer not null,
    owner text not null,
    claimed_at timestamptz not null,
    ended_at timestamptz not null,
    outcome text not null check (outcome in ({outcomes})),
    error text,
    primary key (job_id, token)
);
create trigger append_only before update or delete or truncate on {schema}.attempt
    for each statement execute function {schema}.append_only('but for the pruner');

-- Append-only but for raised_at and tries: one row per lease that was taken away from outside, and whether the job's fences were raised to the
-- token that was drawn for it. Until they are, the old holder may still write.
create table {schema}.revocation (
    revoked bigint primary key,
    job_id bigint not null,
    task text not null,
    token bigint not null,
    lineage text not null,
    outcome text not null check (outcome in ({outcomes})),
    actor text not null,
    reason text not null,
    revoked_at timestamptz not null,
    raised_at timestamptz,
    next_at timestamptz not null,
    tries integer not null default 0,
    error text
);
create index revocation_open on {schema}.revocation (next_at) where raised_at is null;
create index revocation_job on {schema}.revocation (job_id);

-- Append-only: one row per act of a person and per change of a schedule.
create table {schema}.act (
    id bigint generated always as identity primary key,
    at timestamptz not null,
    actor text not null,
    kind text not null,
    subject text not null,
    reason text not null,
    before jsonb,
    after jsonb
);
create index act_subject on {schema}.act (subject, id);
create trigger append_only before update or delete or truncate on {schema}.act
    for each statement execute function {schema}.append_only('but for the pruner');

-- Named leases, for work that something else starts.
create table {schema}.lease (
    name text primary key,
    owner text not null,
    token bigint not null,
    lineage text not null,
    acquired_at timestamptz not null,
    lease_until timestamptz not null
) with (fillfactor = 50);

-- What is said of a queue. acceptable_lag: seconds from due to claimed after which its jobs are late. max_running: at most so many of its jobs
-- are leased at a time.
create table {schema}.queue (
    name text primary key,
    acceptable_lag float8,
    max_running integer check (max_running > 0),
    changed_at timestamptz not null
);

-- Which workers there are: one row each, rewritten every few seconds and gone when it stops. clock_skew: seconds by which the database's clock
-- is ahead of the worker's.
create table {schema}.worker (
    owner text primary key,
    started_at timestamptz not null,
    seen_at timestamptz not null,
    queues text[] not null,
    concurrency integer not null,
    running integer not null,
    clock_skew float8 not null,
    listen_reconnects bigint not null
) with (fillfactor = 50);

-- What each worker measured in each minute, kept for an hour. lag and run count by duration: see BOUNDS in _measures.py. The audit of what became
-- of jobs is in attempt; these are sums of it that cost no look at it.
create table {schema}.measure (
    minute timestamptz not null,
    owner text not null,
    queue text not null,
    task text not null,
    claimed bigint not null,
    lag bigint[] not null,
    lag_sum float8 not null,
    lag_most float8 not null,
    run bigint[] not null,
    run_sum float8 not null,
    run_most float8 not null,
    outcomes jsonb not null,
    refused bigint not null,
    lost bigint not null,
    primary key (minute, owner, queue, task)
) with (fillfactor = 50);

-- The releases of applications that declare schedules: each is one set of declared definitions. Of two that differ about a schedule, the one with the
-- higher number prevails as long as a process of it is present. Numbers also go to people's changes, which nothing older replaces.
create table {schema}.release (
    id text primary key,
    number bigint generated by default as identity,
    first_seen timestamptz not null
);

-- Which release each process runs, while it runs.
create table {schema}.presence (
    owner text primary key,
    release text not null,
    seen_at timestamptz not null
);

-- Schedules. materialised_until is the cursor: every occurrence up to it is in the ledger or was skipped by policy. It only grows. A deleted schedule
-- keeps its row, so that its name and cursor mean the same if it comes back.
create table {schema}.schedule (
    name text primary key,
    task text not null,
    args jsonb not null,
    queue text not null,
    priority integer not null,
    max_attempts integer not null,
    definition jsonb not null,
    catch_up text not null check (catch_up in ('none', 'latest', 'all')),
    catch_up_limit integer not null,
    grace interval,
    overlap text not null check (overlap in ({overlaps})),
    revision integer not null default 1,
    -- Who put this definition here: a release (null: a person), and how new that was.
    release text,
    number bigint not null,
    paused boolean not null default false,
    deleted_at timestamptz,
    -- Nothing that was due before is made by itself: when the schedule was added, changed or resumed.
    begins_at timestamptz not null,
    -- Ledger rows of occurrences due before this may have been pruned (null: none were). Whoever prunes raises it.
    ledger_from timestamptz,
    materialised_until timestamptz not null,
    next_at timestamptz,
    -- The zone data that the occurrences were computed from: older data than this is refused.
    zone_version text collate "C" not null,
    zone_hash text not null,
    created_at timestamptz not null,
    changed_at timestamptz not null
);
create index schedule_zone on {schema}.schedule (zone_version) where deleted_at is null;
create index schedule_next on {schema}.schedule (next_at) where not paused and deleted_at is null and next_at is not null;

-- The ledger of occurrences: an occurrence becomes at most one job, for ever, whatever becomes of the job's row. Those of a schedule that minds
-- overlap wait here until it is decided whether they run.
create table {schema}.occurrence (
    schedule text not null,
    key text collate "C" not null,
    due_at timestamptz not null,
    nominal timestamp not null,
    state text not null check (state in ('waiting', 'enqueued', 'skipped')),
    reason text,
    job_id bigint,
    revision integer not null,
    backfilled boolean not null default false,
    created_at timestamptz not null,
    primary key (schedule, key)
);
-- Small: what waits. The first says whether anything is due, the second gives a schedule's in order.
create index occurrence_due on {schema}.occurrence (due_at) where state = 'waiting';
create index occurrence_waiting on {schema}.occurrence (schedule, due_at) where state = 'waiting';

-- How far the pruner's pass over each table has come: one row, which also is the turn of one process at a time.
create table {schema}.pruning (
    singleton boolean primary key default true check (singleton),
    job_after bigint not null default 0,
    act_after bigint not null default 0,
    lease_after text not null default '',
    occurrence_schedule text not null default '',
    occurrence_key text not null default ''
);
insert into {schema}.pruning default values;
