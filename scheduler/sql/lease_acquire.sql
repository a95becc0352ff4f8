-- lease acquire: take the named lease if it is free or has run out, with a new token.
-- Rows: one, with the issuer's name and whether its identity is the live one; token is null while somebody else holds the lease (then
--   holder and free_in, in seconds, say who and for how long). None: the issuer was never installed.
-- Locks: an advisory lock on the name, for this statement: a token drawn before another holder came and went would be lower than that holder's.
--   Then the lease's row. Index: lease_pkey.
with instant as materialized (select {schema}.clock() as now),
live as materialized (
    select name, lineage, identity = {schema}.identity() as ok from {schema}.issuer
),
turn as materialized (select pg_advisory_xact_lock(hashtextextended({token_literal} || %(name)s, 0))),
taken as (
    insert into {schema}.lease as l (name, owner, token, lineage, acquired_at, lease_until)
    select %(name)s, %(owner)s, nextval({token_literal}), live.lineage, now, now + make_interval(secs => %(ttl)s)
    from live, instant, turn
    where live.ok
    on conflict (name) do update
    set owner = excluded.owner, token = excluded.token, lineage = excluded.lineage, acquired_at = excluded.acquired_at,
        lease_until = excluded.lease_until
    where l.lease_until < excluded.acquired_at and l.token < excluded.token
    returning token, lineage
)
select live.ok, live.name as issuer, taken.token, taken.lineage, held.owner as holder,
    extract(epoch from held.lease_until - (select now from instant))::float8 as free_in
from live
left join taken on true
left join {schema}.lease held on held.name = %(name)s
