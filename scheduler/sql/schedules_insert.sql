-- schedules insert: schedules that are new, with their audit; they begin at %(now)s, the clock's time from which next_at was computed.
-- Rows: (name) of each; one that is missing is there already, deleted perhaps.
-- Locks: waits for a concurrent insert of the same name. Index: schedule_pkey; writes schedule_next, schedule_zone, act_subject.
with added as (
    insert into {schema}.schedule (name, task, args, queue, priority, max_attempts, definition, catch_up, catch_up_limit, grace, overlap,
        release, number, begins_at, materialised_until, next_at, zone_version, zone_hash, created_at, changed_at)
    select g.name, g.task, coalesce(g.args, 'null'), g.queue, g.priority, g.max_attempts, g.definition, g.catch_up, g.catch_up_limit,
        make_interval(secs => g.grace), g.overlap, %(release)s, %(number)s, %(now)s, %(now)s, g.next_at, g.zone_version, g.zone_hash, %(now)s,
        %(now)s
    from jsonb_to_recordset(%(schedules)s::jsonb) g(name text, task text, args jsonb, queue text, priority int, max_attempts int,
        definition jsonb, catch_up text, catch_up_limit int, grace float8, overlap text, next_at timestamptz, zone_version text, zone_hash text)
    order by g.name
    on conflict (name) do nothing
    returning name, definition
),
told as (
    insert into {schema}.act (at, actor, kind, subject, reason, after)
    select {schema}.clock(), %(actor)s, 'schedule added', 'schedule/' || name, %(reason)s, definition from added
)
select name from added
