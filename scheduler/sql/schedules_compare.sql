-- schedules compare: what of the declared schedules is not as it is stored. Rows: (name, new, same): same is true where only the stored release is an
-- older one than %(number)s; what is equal altogether is not among them. Locks: none. Index: schedule_pkey or all of the table.
select g.name, s.name is null as new, coalesce(s.definition = g.definition and s.deleted_at is null, false) as same
from unnest(%(names)s::text[], %(definitions)s::text[]::jsonb[]) g(name, definition)
left join {schema}.schedule s on s.name = g.name
where s.name is null or s.definition <> g.definition or s.deleted_at is not null or s.number < %(number)s
