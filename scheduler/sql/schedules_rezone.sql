-- schedules rezone: up to %(batch)s schedules that were computed from zone data older than %(version)s, %(without)s left aside. Rows: what it takes
-- to compute them anew.
-- Locks: their rows until the transaction ends; schedules that others work on are skipped. Index: schedule_zone, an empty range as a rule.
select name, definition, catch_up, catch_up_limit, extract(epoch from grace)::float8, paused, begins_at, materialised_until, next_at,
    zone_version, zone_hash, (select {schema}.clock())
from {schema}.schedule
where deleted_at is null and zone_version < %(version)s and name <> all(%(without)s::text[])
order by zone_version
limit %(batch)s
for update skip locked
