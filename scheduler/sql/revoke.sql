-- revoke: take running jobs away from their holders. The attempt ends, the job goes where ends says (cancelled, dead, or ready again), and a new
-- token is drawn for it, to which its fences are raised afterwards: the old holder's writes end there, and its settlement is lost. The same of jobs
-- that wait again since their holder's lease ran out: that attempt has ended already.
-- ends: by token, how. Rows: at least one, with the issuer's name and whether its identity is the live one (if not, nothing was done); then of
--   each job that was taken away (id, task, queue, token, lineage, revoked, owner). A job that is missing no longer has that token, or has ended.
-- Locks: the jobs' rows; take them with job_lock.sql first. Index: job_pkey or job_leased; writes attempt_pkey, revocation_pkey.
-- The notification is a hint; it leaves at the commit.
with instant as materialized (select {schema}.clock() as now),
live as materialized (
    select name, lineage, identity = {schema}.identity() as ok from {schema}.issuer
),
held as materialized (
    select id, task, queue, token, lineage, attempt, owner, claimed_at, status
    from {schema}.job
    where id = any(%(ids)s::bigint[]) and token = any(%(tokens)s::bigint[]) and status in ('leased', 'ready') and (select ok from live)
),
freed as (
    update {schema}.job j
    set (status, due_at, error, reason, finished_at) = (
            select e.state, case when e.delay is null then j.due_at else (select now from instant) + make_interval(secs => e.delay) end,
                coalesce(e.error, j.error), e.reason, case when e.state <> 'ready' then (select now from instant) end
            from jsonb_to_record(%(ends)s::jsonb -> j.token::text) e(state text, delay float8, error text, reason text)
        ),
        token = nextval({token_literal}), lineage = (select lineage from live), owner = null, lease_until = null
    where j.id = any(array(select id from held)) and j.status in ('leased', 'ready')
    returning j.id, j.token, j.lineage
),
told as (
    insert into {schema}.attempt (job_id, token, lineage, attempt, owner, claimed_at, ended_at, outcome, error)
    select h.id, h.token, h.lineage, h.attempt, h.owner, h.claimed_at, (select now from instant), e.outcome, e.error
    from held h, jsonb_to_record(%(ends)s::jsonb -> h.token::text) e(outcome text, error text)
    where h.status = 'leased'
),
noted as (
    insert into {schema}.revocation (revoked, job_id, task, token, lineage, outcome, actor, reason, revoked_at, next_at)
    select h.token, h.id, h.task, f.token, f.lineage, e.outcome, %(actor)s, coalesce(e.reason, e.error, ''), (select now from instant),
        (select now from instant)
    from held h join freed f on f.id = h.id, jsonb_to_record(%(ends)s::jsonb -> h.token::text) e(outcome text, reason text, error text)
)
select l.ok, l.name as issuer, f.id, h.task, h.queue, f.token, f.lineage, h.token as revoked, h.owner,
    case when f.id is not null then pg_notify({revoked_channel_literal}, h.token::text) end as told
from live l left join (freed f join held h on h.id = f.id) on true
order by f.token
