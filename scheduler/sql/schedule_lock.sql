-- schedule lock: one schedule as it is stored, under its lock, and whether %(definition)s is what it already is: asked here, since what
-- JSON keeps of a number or a tuple is not what Python had. Rows: one or none.
-- Locks: the schedule's row. Index: schedule_pkey.
select definition, definition = %(definition)s::jsonb as same from {schema}.schedule
where name = %(name)s
for update
