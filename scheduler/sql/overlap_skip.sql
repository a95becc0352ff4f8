-- overlap skip: occurrences that the schedule's policy drops. Rows: (schedule, key) of each.
-- Locks: the occurrences (their schedules' rows are held). Index: occurrence_pkey ("is true": or the
-- planner reads all that waits for each of them).
update {schema}.occurrence o
set state = 'skipped', reason = g.reason
from unnest(%(schedules)s::text[], %(keys)s::text[], %(reasons)s::text[]) g(schedule, key, reason)
where o.schedule = g.schedule and o.key = g.key and (o.state = 'waiting') is true
returning o.schedule, o.key
