-- overlap due: up to %(batch)s schedules, %(without)s left aside, for whose due occurrences something can be decided now (see _overlap.py for the rules that this
-- anticipates: a schedule that can only go on waiting must not stand in the way of others).
-- Rows: (name, overlap) of each; overlap is null where somebody else works on it.
-- Locks: the schedules' rows until the transaction ends, passing by those that others hold. Index: occurrence_due, schedule_pkey,
--   job_schedule, occurrence_waiting.
with instant as materialized (select {schema}.clock() as now),
waiting as materialized (
    select schedule, count(*) filter (where not backfilled) as regular
    from {schema}.occurrence
    where state = 'waiting' and due_at <= (select now from instant)
    group by schedule
),
candidate as materialized (
    select s.name
    from waiting w
    join {schema}.schedule s on s.name = w.schedule
    cross join lateral (
        select count(*) as jobs, count(*) filter (where j.status = 'leased' or j.token is not null) as started
        from {schema}.job j
        where j.schedule = s.name and j.status in ('ready', 'leased')
    ) live
    where not s.paused and s.name <> all(%(without)s::text[])
        and (
            s.overlap = 'allow' or live.jobs = 0 or (s.overlap = 'cancel_other' and w.regular > 0)
            or (live.started > 0 and (s.overlap = 'skip' and w.regular > 0 or s.overlap = 'buffer_one' and w.regular > 1))
        )
    limit %(batch)s
),
held as (
    select s.name, s.overlap
    from {schema}.schedule s
    where s.name = any(array(select name from candidate))
    for update skip locked
)
select c.name, h.overlap from candidate c left join held h on h.name = c.name
