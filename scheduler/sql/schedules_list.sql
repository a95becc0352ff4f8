-- schedules list: the schedules by name, all or the one called %(name)s, deleted ones only where %(deleted)s. Rows: one for each, with what waits of
-- it (for its turn) and what lives (jobs that wait or run). Locks: none. Index: schedule_pkey, occurrence_waiting, job_schedule.
select s.name, s.task, s.args, s.queue, s.priority, s.max_attempts, s.definition, s.catch_up, s.overlap, s.revision, s.release,
    case when s.deleted_at is not null then 'deleted' when s.paused then 'paused' when s.next_at is null then 'ended' else 'active' end as state,
    case when not s.paused then s.next_at end as next_at, s.materialised_until, s.begins_at, s.zone_version, s.created_at, s.changed_at,
    (select count(*) from {schema}.occurrence o where o.schedule = s.name and o.state = 'waiting')::int as waiting,
    (select count(*) from {schema}.job j where j.schedule = s.name and j.status in ('ready', 'leased'))::int as live
from {schema}.schedule s
where (%(name)s::text is null or s.name = %(name)s) and (%(deleted)s or s.deleted_at is null)
order by s.name
