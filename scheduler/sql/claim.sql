-- claim: lease up to %(batch)s due jobs, in order of priority, due time and id, each with a new token. Two forms (see Statements.claim): the
-- plain one passes over exclusive jobs and queues with a limit, at no cost; the guarded one takes them too (see claim_guarded.sql).
-- Rows: always at least one, with the issuer's name, whether its identity is the live one, and what the guarded form has to say. A row whose
--   id is null means: nothing due (or everything due is being claimed by others). No row at all: the issuer was never installed.
-- Locks: the picked rows of job, for the length of this statement; rows locked by others are skipped, never waited for.
-- Index: job_ready, one range per queue and task (see claim_arm.sql); then job_pkey.
-- An array, not a join, drives the update: it is an index condition on the primary key whatever the statistics say. A join turned around
-- where they said that the table is empty.
-- Tokens are drawn after the rows are locked and in run order, so that within a batch they rise as the jobs will run.
with instant as materialized (select {schema}.clock() as now),
live as materialized (
    select name, lineage, identity = {schema}.identity() as ok from {schema}.issuer
),
pair as materialized (
    select queue, task from unnest(%(queues)s::text[]) q(queue), unnest(%(tasks)s::text[]) t(task) where (select ok from live)
),
{guarded}
picked as materialized (
    select array_agg(id) as ids, array_agg(token) as tokens
    from (
        select id, nextval({token_literal}) as token
        from (
            select id from ({arms}) candidate
            order by priority desc, due_at, id
            limit %(batch)s
        ) ordered
    ) numbered
),
claimed as (
    update {schema}.job j
    set status = 'leased',
        attempt = j.attempt + 1,
        owner = %(owner)s,
        token = (select tokens from picked)[array_position((select ids from picked), j.id)],
        lineage = (select lineage from live),
        claimed_at = (select now from instant),
        lease_until = (select now from instant)
            + make_interval(secs => (%(leases)s::float8[])[array_position(%(tasks)s::text[], j.task)])
    where j.id = any((select ids from picked)::bigint[])
    returning j.id, j.token, j.lineage, j.task, j.queue, j.args, j.priority, j.due_at, j.attempt, j.max_attempts,
        j.yields, j.key, j.schedule, j.nominal, extract(epoch from j.claimed_at - j.due_at)::float8 as lag
)
select l.ok, l.name as issuer, {guarded_says}, c.*
from live l left join claimed c on true
order by c.token
