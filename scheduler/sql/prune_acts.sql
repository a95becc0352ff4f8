-- prune acts: look at the next page of acts in the order of their numbers, which is that of their times, and delete those that are older than they
-- are kept.
-- Rows: one: (seen, last, gone, young), as in prune_jobs.sql. Locks: the deleted rows. Index: act_pkey.
with bound as materialized (select {schema}.clock() - make_interval(secs => %(seconds)s) as at),
page as materialized (
    select id, at from {schema}.act where id > %(after)s::bigint order by id limit %(batch)s
),
gone as (
    delete from {schema}.act
    where id = any(array(select id from page where at < (select at from bound)))
    returning id
)
select (select count(*) from page) as seen, (select max(id) from page) as last, (select count(*) from gone) as gone,
    coalesce((select bool_and(at >= (select at from bound)) from page), true) as young
