-- claim: lease up to %(batch)s due jobs, in order of priority, due time and id, each with a new token. Two forms (see Statements.claim): the
-- plain one passes over exclusive jobs and queues with a limit, at no cost; the guarded one takes them too (see claim_guarded.sql). Where a worker
-- has a single lane, claim_lane.sql stands for the plain one.
-- Rows: of the plain form the claimed jobs, in no order, each with the issuer's name and how many due jobs were seen where there are several lanes:
--   more than were claimed means that others are claiming, too. None: nothing is due, or others are claiming it, or so many that it was not this
--   one's turn, or the issuer's identity is not the live one or it was never installed (ask outlook.sql). The guarded form: claim_guarded_says.sql.
-- Locks: a turn, one of a few advisory locks, unless %(anyway)s: without one it takes nothing. The picked rows of job, for the length of this
--   statement; rows locked by others are skipped, never waited for.
-- Index: job_ready, one range per queue, task and priority (see claim_arm.sql); then job_pkey.
-- An array, not a join, drives the update: it is an index condition on the primary key whatever the statistics say. A join turned around
-- where they said that the table is empty.
-- Tokens are drawn after the rows are locked and in run order, so that within a batch they rise as the jobs will run. They come to their rows by
-- a binary search in the sorted ids: a look through the array for each row grew with the square of the batch.
with instant as materialized (select {schema}.clock() as now),
live as materialized (
    select name, lineage, identity = {schema}.identity() as ok, %(anyway)s or {turn} as free from {schema}.issuer
),
lane as materialized (
    -- The bounds go back so far (%(back)s seconds) where a job may have been committed after others that were enqueued later.
    select l.number, l.queue, l.task, {schema}.pair(l.queue, l.task) as pair, l.priority,
        case when l.due_at is null then '-infinity' else least(l.due_at, (select now from instant) - make_interval(secs => %(back)s)) end as due_at,
        case when l.due_at <= (select now from instant) - make_interval(secs => %(back)s) then l.id else 0 end as id
    from unnest(
        %(lane_queues)s::text[], %(lane_tasks)s::text[], %(lane_priorities)s::int[], %(lane_dues)s::timestamptz[], %(lane_ids)s::bigint[]
    ) with ordinality l(queue, task, priority, due_at, id, number)
    where (select ok and free from live) and l.queue <> all(array(select name from {schema}.queue where max_running is not null))
),
quota as materialized (
    select number, count(*) as most
    from (
        select l.number
        from lane l cross join lateral (
            select j.id, j.due_at from {schema}.job j
            where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) = l.pair
                and j.queue = l.queue and j.task = l.task and j.priority = l.priority
                and (j.due_at, j.id) >= (l.due_at, l.id) and j.due_at <= (select now from instant)
            order by j.due_at, j.id
            limit %(peek)s
        ) a
        where (select count(*) from lane) > 1
        order by l.priority desc, a.due_at, a.id
        limit %(peek)s
    ) first
    group by number
),
{guarded}
picked as materialized (
    select array_agg(id) as ids, array_agg(token) as tokens
    from (
        select id, token
        from (
            select id, nextval({token_literal}) as token
            from (
                select id from ({arms}) candidate
                order by priority desc, due_at, id
                limit %(batch)s
            ) ordered
        ) numbered
        order by id
    ) sorted
)
{claimed}
update {schema}.job j
set status = 'leased',
    attempt = j.attempt + 1,
    owner = %(owner)s,
    token = (select tokens from picked)[width_bucket(j.id, (select ids from picked))],
    lineage = (select lineage from live),
    claimed_at = (select now from instant),
    lease_until = (select now from instant)
        + make_interval(secs => coalesce(%(lease)s::float8, (%(leases)s::float8[])[array_position(%(tasks)s::text[], j.task)]))
where j.id = any((select ids from picked)::bigint[])
returning j.id, j.token, j.lineage, j.task, j.queue, j.args::text, j.priority, j.due_at, j.attempt, j.max_attempts,
    j.yields, j.key, j.schedule, j.nominal, date_part('epoch', j.claimed_at - j.due_at) as lag, j.trace, j.created_at, (select name from live) as issuer
{says}
