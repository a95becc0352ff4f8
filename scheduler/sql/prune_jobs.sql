-- prune jobs: look at the next page of jobs in the order of their numbers, and delete those that ended longer ago than their state is kept, with
-- their attempts and revocations. A job whose fences are still to be raised stays. The page is read by the key, so that no job costs an index entry
-- for the day when it is pruned, and a batch costs the same however many there are.
-- Rows: one: (seen, last, gone, young): jobs in the page, its last number, how many were deleted, and whether all of the page is younger than
--   every retention time, so that no later page has anything to delete.
-- Locks: the rows to be deleted, skipping those that somebody holds. Index: job_pkey, attempt_pkey, revocation_job.
with instant as materialized (select {schema}.clock() as now),
page as materialized (
    select id, created_at, status, finished_at
    from {schema}.job
    where id > %(after)s::bigint
    order by id
    limit %(batch)s
),
doomed as materialized (
    select id
    from {schema}.job
    where id = any(array(
            select id from page
            where finished_at < (select now from instant)
                - make_interval(secs => (%(seconds)s::float8[])[array_position(%(states)s::text[], status)])
        ))
        and status = any(%(states)s::text[])
        -- Of the row as it is once it is locked, as the state: it may have run again since the page was read.
        and finished_at < (select now from instant)
            - make_interval(secs => (%(seconds)s::float8[])[array_position(%(states)s::text[], status)])
        and id <> all(array(
            select job_id from {schema}.revocation
            where job_id = any(array(select id from page)) and raised_at is null
        ))
    for update skip locked
),
gone as (
    delete from {schema}.job where id = any(array(select id from doomed)) and status = any(%(states)s::text[]) returning id
),
attempts as (
    delete from {schema}.attempt where job_id = any(array(select id from gone))
),
revocations as (
    delete from {schema}.revocation where job_id = any(array(select id from gone))
)
select (select count(*) from page) as seen, (select max(id) from page) as last, (select count(*) from gone) as gone,
    coalesce((select bool_and(created_at > (select now from instant) - make_interval(secs => %(shortest)s)) from page), true) as young
