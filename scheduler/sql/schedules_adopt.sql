-- schedules adopt: an equal definition of a newer release is that release's from now on. Rows: none.
-- Locks: the schedules' rows, in the order of their names, as everybody who takes several of them and waits. Index: schedule_pkey.
update {schema}.schedule set release = %(release)s, number = %(number)s
where name = any(array(
    select name from {schema}.schedule
    where name = any(%(names)s::text[]) and number < %(number)s and deleted_at is null
    order by name
    for update
))
