-- schedules adopt: an equal definition of a newer release is that release's from now on. Rows: (name) of each; one that is missing is no longer as
-- %(definitions)s has it, or is a newer one's.
-- Locks: the schedules' rows, in the order of their names, as everybody who takes several of them and waits. Index: schedule_pkey.
update {schema}.schedule set release = %(release)s, number = %(number)s
where name = any(array(
    select s.name
    from unnest(%(names)s::text[], %(definitions)s::text[]::jsonb[]) g(name, definition)
    join {schema}.schedule s on s.name = g.name
    where s.definition = g.definition and s.number < %(number)s and s.deleted_at is null
    order by s.name
    for update of s
))
returning name
