-- schedule resume: due again from now on; what was due meanwhile is not made. Rows: (now, materialised_until), the cursor, which never falls.
-- Locks: the schedule's row (already held). Index: schedule_pkey, schedule_next.
update {schema}.schedule s
set paused = false, begins_at = now, materialised_until = greatest(s.materialised_until, now), changed_at = now
from (select {schema}.clock() as now) instant
where s.name = %(name)s
returning now, s.materialised_until
