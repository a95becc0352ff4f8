-- schedule lock: one schedule as it is stored, under its lock. Rows: one or none.
-- Locks: the schedule's row. Index: schedule_pkey.
select definition, revision, paused, materialised_until, {schema}.clock() as now from {schema}.schedule
where name = %(name)s
for update
