-- claim_lane: the claim of claim.sql for a worker with one lane (queue, task and priority) that looks for nothing exclusive and for no queue with a
-- limit. All that is said there of order, tokens and locks holds here.
-- Rows: the claimed jobs, in no order, each with the issuer's name. None: nothing is due, or others are claiming it, or so many that it was not this
--   one's turn, or the issuer's identity is not the live one or it was never installed (ask outlook.sql).
-- Locks: a turn (see claim.sql); the picked rows of job, for the length of this statement; rows locked by others are skipped, never waited for.
-- Index: job_ready, one range; then job_pkey.
-- The live identity is read by a subquery: the planner would call the function itself, which fails on a standby before the server says that it is
-- read-only.
-- Tokens come to their rows by a binary search in the sorted ids: a look through the array for each row grew with the square of the batch.
with live as materialized (
    select name, lineage, {schema}.clock() as now from {schema}.issuer where (%(anyway)s or {turn}) and identity = (select {schema}.identity())
),
lane as materialized (
    select
        case when %(due)s::timestamptz is null then '-infinity' else least(%(due)s::timestamptz, now - make_interval(secs => %(back)s)) end as due_at,
        case when %(due)s::timestamptz <= now - make_interval(secs => %(back)s) then %(id)s::bigint else 0 end as id
    from live
    where not exists (select from {schema}.queue where name = %(queue)s and max_running is not null)
),
picked as materialized (
    select array_agg(id) as ids, array_agg(token) as tokens
    from (
        select id, token
        from (
            select id, nextval({token_literal}) as token
            from (
                select j.id from {schema}.job j
                where j.status = 'ready' and j.exclusive is null and {schema}.pair(j.queue, j.task) = {schema}.pair(%(queue)s, %(task)s)
                    and j.queue = %(queue)s and j.task = %(task)s and j.priority = %(priority)s::int
                    and (j.due_at, j.id) >= ((select due_at from lane), (select id from lane)) and j.due_at <= (select now from live)
                order by j.due_at, j.id
                limit %(batch)s
                for update skip locked
            ) ordered
        ) numbered
        order by id
    ) sorted
)
update {schema}.job j
set status = 'leased',
    attempt = j.attempt + 1,
    owner = %(owner)s,
    token = (select tokens from picked)[width_bucket(j.id, (select ids from picked))],
    lineage = (select lineage from live),
    claimed_at = (select now from live),
    lease_until = (select now from live) + make_interval(secs => %(lease)s)
where j.id = any((select ids from picked)::bigint[])
returning j.id, j.token, j.lineage, j.task, j.queue, j.args::text, j.priority, j.due_at, j.attempt, j.max_attempts,
    j.yields, j.key, j.schedule, j.nominal, date_part('epoch', j.claimed_at - j.due_at) as lag, j.trace, j.created_at, (select name from live) as issuer
