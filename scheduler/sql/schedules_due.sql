-- schedules due: up to %(batch)s schedules with an occurrence up to the horizon (seconds ahead), %(without)s left aside: what this process cannot
-- compute must not stand in the way of what it can. Rows: what the materialiser needs of each.
-- Locks: their rows until the transaction ends; schedules that another materialiser works on are skipped. Index: schedule_next.
select name, definition, catch_up, catch_up_limit, extract(epoch from grace)::float8, materialised_until, zone_version, zone_hash, (select {schema}.clock())
from {schema}.schedule
where not paused and deleted_at is null and next_at <= (select {schema}.clock() + make_interval(secs => %(horizon)s))
    and name <> all(%(without)s::text[])
order by next_at
limit %(batch)s
for update skip locked
