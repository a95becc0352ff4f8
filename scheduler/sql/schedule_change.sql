-- schedule change: another definition, from now on: the revision grows and the cursor moves to now, so that an edit never fires the past.
-- What the old definition had put ahead and nobody has claimed is superseded: its jobs are cancelled and its ledger rows freed for the new one.
-- Rows: (now, superseded). Locks: the schedule's row (already held), its waiting jobs. Index: schedule_pkey, job_schedule, occurrence_pkey.
with instant as materialized (select {schema}.clock() as now),
changed as (
    update {schema}.schedule
    set task = %(task)s, args = %(args)s::jsonb, queue = %(queue)s, priority = %(priority)s, max_attempts = %(max_attempts)s,
        definition = %(definition)s::jsonb, catch_up = %(catch_up)s, catch_up_limit = %(catch_up_limit)s,
        grace = make_interval(secs => %(grace)s), revision = revision + 1, materialised_until = (select now from instant),
        zone_version = %(zone_version)s, zone_hash = %(zone_hash)s, changed_at = (select now from instant)
    where name = %(name)s
),
superseded as (
    update {schema}.job
    set status = 'cancelled', reason = 'schedule changed', finished_at = (select now from instant)
    where schedule = %(name)s and status = 'ready' and token is null and due_at > (select now from instant)
    returning id
),
freed as (
    delete from {schema}.occurrence where schedule = %(name)s and job_id in (select id from superseded)
)
select now, (select count(*) from superseded) from instant
