-- materialise: write occurrences into the ledger and, for those that the policy lets run, one job each, all in one statement. Where the schedule
-- minds overlap, an occurrence waits in the ledger, without a job, until overlap_admit.sql.
-- Rows: (schedule, key, state) of each occurrence that is new; one that is missing was in the ledger before.
-- Locks: waits for a concurrent insert of the same occurrence. Index: occurrence_pkey; writes job_ready.
with instant as materialized (select {schema}.clock() as now),
given as materialized (
    select * from unnest(%(schedules)s::text[], %(keys)s::text[], %(dues)s::timestamptz[], %(nominals)s::timestamp[], %(reasons)s::text[])
        g(schedule, key, due_at, nominal, skipped)
),
fresh as (
    insert into {schema}.occurrence (schedule, key, due_at, nominal, state, reason, job_id, revision, backfilled, created_at)
    select g.schedule, g.key, g.due_at, g.nominal,
        case when g.skipped is not null then 'skipped' when s.overlap <> 'allow' then 'waiting' else 'enqueued' end, g.skipped,
        case when g.skipped is null and s.overlap = 'allow' then nextval(pg_get_serial_sequence({job_literal}, 'id')) end,
        s.revision, %(backfilled)s, (select now from instant)
    from given g join {schema}.schedule s on s.name = g.schedule
    order by g.due_at
    on conflict (schedule, key) do nothing
    returning schedule, key, due_at, nominal, state, job_id
),
jobs as (
    insert into {schema}.job (id, queue, task, args, priority, due_at, key, max_attempts, schedule, nominal, created_at)
    overriding system value
    select f.job_id, s.queue, s.task, s.args, s.priority, f.due_at, f.schedule || '@' || f.key, s.max_attempts, f.schedule, f.nominal,
        (select now from instant)
    from fresh f join {schema}.schedule s on s.name = f.schedule
    where f.state = 'enqueued'
    returning queue
)
select schedule, key, state, (select count(pg_notify({channel_literal}, queue)) from (select distinct queue from jobs) queues)
from fresh
