-- ledger latest: the newest occurrences of a schedule, up to %(most)s, by their local or due time, with what became of their jobs. Rows: one for each.
-- Locks: none. Index: occurrence_pkey, backwards; job_pkey.
select o.key, o.due_at, o.nominal, o.state, o.reason, o.job_id, o.revision, o.backfilled, j.status as job_status
from {schema}.occurrence o left join {schema}.job j on j.id = o.job_id
where o.schedule = %(name)s
order by o.key desc
limit %(most)s
