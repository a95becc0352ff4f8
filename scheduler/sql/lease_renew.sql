-- lease renew: extend named leases, all of a process's in one statement. As renew.sql it waits for nobody: a row that somebody holds locked, such
-- as one who asks for that lease and was stopped in the middle, must not cost the others.
-- Rows: (token, extended) of each lease that is still held; extended is false where the row is locked: nothing is known of it, ask again. One that
--   is missing is lost.
-- Locks: the leases' rows, skipping those that others hold. Index: lease_pkey; rewrites none.
with mine as materialized (
    select token from {schema}.lease
    where name = any(%(names)s::text[]) and token = any(%(tokens)s::bigint[]) and owner = %(owner)s
),
renewed as (
    update {schema}.lease l
    set lease_until = (select {schema}.clock())
        + make_interval(secs => (%(leases)s::float8[])[array_position(%(tokens)s::bigint[], l.token)])
    where l.name = any(array(
            select name from {schema}.lease
            where name = any(%(names)s::text[]) and token = any(%(tokens)s::bigint[]) and owner = %(owner)s
            for no key update skip locked
        ))
    returning l.token
)
select token, token in (select token from renewed) from mine
