-- overlap state: what of these schedules is not over, and what waits and is due. In a statement of its own after the one that locks them: another
-- gate may have decided in between. Rows: (name, jobs, started, keys, backfilled), arrays; of what waits the first %(most)s.
-- No order is asked of the jobs: the planner would read all of them by their key for it. Locks: none. Index: job_schedule, occurrence_waiting.
select n.name, live.ids, live.started, due.keys, due.backfilled
from unnest(%(names)s::text[]) n(name)
cross join lateral (
    select coalesce(array_agg(j.id), '{}') as ids,
        coalesce(array_agg(j.status = 'leased' or j.token is not null), '{}') as started
    from {schema}.job j
    where j.schedule = n.name and j.status in ('ready', 'leased')
) live
cross join lateral (
    select coalesce(array_agg(w.key order by w.due_at, w.key), '{}') as keys,
        coalesce(array_agg(w.backfilled order by w.due_at, w.key), '{}') as backfilled
    from (
        select o.key, o.due_at, o.backfilled
        from {schema}.occurrence o
        where o.schedule = n.name and o.state = 'waiting' and o.due_at <= (select {schema}.clock())
        order by o.due_at
        limit %(most)s
    ) w
) due
