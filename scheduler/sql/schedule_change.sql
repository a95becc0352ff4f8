-- schedule change: another definition, from now on: the revision grows and nothing that was due before is made, so that an edit never fires the
-- past. A deleted schedule is there again. Rows: (now, materialised_until), the cursor, which never falls.
-- Locks: the schedule's row (already held). Index: schedule_pkey.
update {schema}.schedule s
set task = %(task)s, args = %(args)s::jsonb, queue = %(queue)s, priority = %(priority)s, max_attempts = %(max_attempts)s,
    definition = %(definition)s::jsonb, catch_up = %(catch_up)s, catch_up_limit = %(catch_up_limit)s,
    grace = make_interval(secs => %(grace)s), overlap = %(overlap)s, release = %(release)s, number = %(number)s, revision = s.revision + 1,
    deleted_at = null, begins_at = now, materialised_until = greatest(s.materialised_until, now), zone_version = %(zone_version)s,
    zone_hash = %(zone_hash)s, changed_at = now
from (select {schema}.clock() as now) instant
where s.name = %(name)s
returning now, s.materialised_until
