-- The part of the claim for exclusive jobs (at most one live lease per value) and queues with a limit (at most so many). What is running is
-- counted from the leased jobs, never stored. That a count is still true is what the slots are for: every value and every limited queue has one
-- (by its hash, so several may share one). A claim locks the slots that it needs, skipping those that others hold, believes its snapshot only if
-- no slot was bumped since, and bumps them. So of two claims of one value one finds the slot locked or newer than its snapshot, and passes.
-- The unique index job_exclusive_live stands behind it.
-- Jobs of limited queues are read by lanes, as others are (see claim_arm.sql), though from the front.
-- Of exclusive jobs the first of each value is looked at, up to %(values)s values of each queue and task, from %(after)s on: the claim tells where
-- to go on, so that a million jobs that have to wait hide nothing.
-- Rows: guarded (id, priority, due_at): locked, to be claimed. Locks: rows of slot, then of job; all skipped if others hold them.
-- Index: job_exclusive, job_exclusive_live, job_ready, job_leased; slot_pkey, job_pkey.
pair as materialized (
    select queue, task from unnest(%(queues)s::text[]) q(queue), unnest(%(tasks)s::text[]) t(task) where (select ok and free from live)
),
walked as materialized (
    with recursive step as (
        select p.queue, p.task, 1 as number, (
            select j.exclusive from {schema}.job j
            where j.status = 'ready' and j.exclusive is not null and j.queue = p.queue and j.task = p.task
                and j.exclusive > %(after)s::text
            order by j.exclusive limit 1
        ) as value
        from pair p
        union all
        select s.queue, s.task, s.number + 1, (
            select j.exclusive from {schema}.job j
            where j.status = 'ready' and j.exclusive is not null and j.queue = s.queue and j.task = s.task
                and j.exclusive > s.value
            order by j.exclusive limit 1
        )
        from step s
        where s.value is not null and s.number < %(values)s
    )
    select queue, task, number, value from step where value is not null
),
room as materialized (
    -- A lease that ran out counts for a minute: until then its holder may only be late with its renewal. One that nobody here can take back,
    -- since no worker knows its task any more, must not fill the queue for ever.
    select q.name,
        q.max_running - (
            select count(*) from {schema}.job j
            where j.status = 'leased' and j.queue = q.name and j.lease_until >= (select now from instant) - interval '1 minute'
        ) as free
    from {schema}.queue q
    where q.name = any(%(queues)s::text[]) and q.max_running is not null
),
heads as (
    select distinct on (w.value) h.id, h.priority, h.due_at, w.queue, w.value
    from walked w cross join lateral (
        -- The first of a priority is the one that is due first: if it is not due, none of that priority is, however many there are.
        with recursive head as (
            (
                select j.id, j.priority, j.due_at from {schema}.job j
                where j.status = 'ready' and j.exclusive is not null and j.queue = w.queue and j.task = w.task and j.exclusive = w.value
                order by j.priority desc, j.due_at, j.id limit 1
            )
            union all
            select n.id, n.priority, n.due_at
            from head p cross join lateral (
                select j.id, j.priority, j.due_at from {schema}.job j
                where j.status = 'ready' and j.exclusive is not null and j.queue = w.queue and j.task = w.task and j.exclusive = w.value
                    and j.priority < p.priority
                order by j.priority desc, j.due_at, j.id limit 1
            ) n
            where p.due_at > (select now from instant)
        )
        select id, priority, due_at from head where due_at <= (select now from instant)
    ) h
    where (
        select b.id from {schema}.job b where b.status = 'leased' and b.exclusive is not null and b.exclusive = w.value limit 1
    ) is null and w.queue <> all(array(select name from room where free <= 0))
    order by w.value, h.priority desc, h.due_at, h.id
),
waiting as (
    select id, priority, due_at, queue, value from heads
    union all
    select a.id, l.priority, a.due_at, l.queue, null
    from unnest(%(lane_queues)s::text[], %(lane_tasks)s::text[], %(lane_priorities)s::int[]) l(queue, task, priority)
    join room r on r.name = l.queue and r.free > 0 cross join lateral (
        select j.id, j.due_at from {schema}.job j
        where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) = {schema}.pair(l.queue, l.task)
            and j.queue = l.queue and j.task = l.task and j.priority = l.priority
            and j.due_at <= (select now from instant)
        order by j.due_at, j.id
        limit least(%(batch)s, r.free)
    ) a
    where (select ok from live)
),
wanted as materialized (
    select w.id, array_remove(array[
            case when w.value is not null then hashtext('value ' || w.value) & 1023 end,
            case when r.name is not null then hashtext('queue ' || w.queue) & 1023 end
        ], null) as slots
    from (
        select *, row_number() over (partition by queue order by priority desc, due_at, id) as place from waiting
    ) w
    left join room r on r.name = w.queue
    where r.name is null or w.place <= r.free
    order by w.priority desc, w.due_at, w.id
    limit %(batch)s
),
taken as materialized (
    select number, claims from {schema}.slot
    where number = any(array(select unnest(slots) from wanted))
    order by number
    for update skip locked
),
sure as materialized (
    select coalesce(array_agg(t.number), '{}') as slots
    from taken t join {schema}.slot seen on seen.number = t.number and seen.claims = t.claims
),
guarded as materialized (
    select id, priority, due_at from {schema}.job
    where id = any(array(select id from wanted where slots <@ (select slots from sure))) and status = 'ready'
    for update skip locked
),
bumped as (
    update {schema}.slot set claims = claims + 1
    where number = any(array(select unnest(w.slots) from wanted w join guarded g on g.id = w.id))
),
