-- schedule insert: a schedule that is new; it begins now. Rows: (now), or none if there is one of that name, deleted perhaps.
-- Locks: waits for a concurrent insert of the same name. Index: schedule_pkey.
insert into {schema}.schedule as s (name, task, args, queue, priority, max_attempts, definition, catch_up, catch_up_limit, grace, overlap,
    release, number, begins_at, materialised_until, zone_version, zone_hash, created_at, changed_at)
select %(name)s, %(task)s, %(args)s::jsonb, %(queue)s, %(priority)s, %(max_attempts)s, %(definition)s::jsonb, %(catch_up)s,
    %(catch_up_limit)s, make_interval(secs => %(grace)s), %(overlap)s, %(release)s, %(number)s, now, now, %(zone_version)s, %(zone_hash)s,
    now, now
from (select {schema}.clock() as now) instant
on conflict (name) do nothing
returning materialised_until
