-- prune leases: look at the next page of named leases, and delete those that were over a day ago.
-- Rows: one: (seen, last, gone, young): as in prune_jobs.sql, but no page says anything about the next one.
-- Locks: the rows to be deleted, skipping those that somebody holds. Index: lease_pkey.
with bound as materialized (select {schema}.clock() - interval '1 day' as at),
page as materialized (
    select name, lease_until from {schema}.lease where name > %(after)s order by name limit %(batch)s
),
doomed as materialized (
    select name
    from {schema}.lease
    where name = any(array(select name from page where lease_until < (select at from bound))) and lease_until < (select at from bound)
    for update skip locked
),
gone as (
    delete from {schema}.lease where name = any(array(select name from doomed)) returning name
)
select (select count(*) from page) as seen, (select max(name) from page) as last, (select count(*) from gone) as gone, false as young
