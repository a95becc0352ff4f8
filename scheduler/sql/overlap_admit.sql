-- overlap admit: occurrences whose turn it is become jobs, due since they were due. Rows: (schedule, key, job_id) of each.
-- Locks: the occurrences (their schedules' rows are held). Index: occurrence_pkey ("is true": or the
-- planner reads all that waits for each of them), schedule_pkey; writes job_ready.
with admitted as (
    update {schema}.occurrence o
    set state = 'enqueued', job_id = nextval(pg_get_serial_sequence({job_literal}, 'id'))
    from unnest(%(schedules)s::text[], %(keys)s::text[]) g(schedule, key)
    where o.schedule = g.schedule and o.key = g.key and (o.state = 'waiting') is true
    returning o.schedule, o.key, o.job_id, o.due_at, o.nominal
),
jobs as (
    insert into {schema}.job (id, queue, task, args, priority, due_at, key, max_attempts, schedule, nominal, created_at)
    overriding system value
    select a.job_id, s.queue, s.task, s.args, s.priority, a.due_at, a.schedule || '@' || a.key, s.max_attempts, a.schedule, a.nominal,
        (select {schema}.clock())
    from admitted a join {schema}.schedule s on s.name = a.schedule
    returning queue
)
select schedule, key, job_id, (select count(pg_notify({channel_literal}, queue)) from (select distinct queue from jobs) queues)
from admitted
