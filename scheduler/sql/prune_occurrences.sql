-- prune occurrences: look at the next page of the ledger, and delete those rows that were due longer ago than they are kept and that their schedule's
-- cursor has passed, so that nothing can make them again but a backfill, which asks first: the schedule remembers since when its ledger is whole.
-- Rows: one: (seen, last_schedule, last_key, gone): of the page, its end, and how many were deleted.
-- Locks: the page's schedules, then the deleted rows; a schedule that somebody holds is left to the next pass. Index: occurrence_pkey, schedule_pkey.
with bound as materialized (select {schema}.clock() - make_interval(secs => %(seconds)s) as at),
page as materialized (
    select schedule, key, due_at, state
    from {schema}.occurrence
    where (schedule, key) > (%(occurrence_schedule)s::text, %(occurrence_key)s::text)
    order by schedule, key
    limit %(batch)s
),
held as materialized (
    select name, materialised_until
    from {schema}.schedule
    where name = any(array(select distinct schedule from page where due_at < (select at from bound)))
    for no key update skip locked
),
doomed as materialized (
    select p.schedule, p.key, p.due_at
    from page p left join held h on h.name = p.schedule
    where p.due_at < (select at from bound) and p.state in ('enqueued', 'skipped')
        and (p.due_at < h.materialised_until or not exists (select from {schema}.schedule s where s.name = p.schedule))
),
gone as (
    delete from {schema}.occurrence
    where schedule = any(array(select schedule from doomed)) and key = any(array(select key from doomed))
        and (schedule, key) in (select schedule, key from doomed)
    returning schedule, due_at
),
remembered as (
    update {schema}.schedule s
    set ledger_from = greatest(s.ledger_from, (select max(g.due_at) + interval '1 microsecond' from gone g where g.schedule = s.name))
    where s.name = any(array(select distinct schedule from gone))
)
select (select count(*) from page) as seen,
    (select schedule from page order by schedule desc, key desc limit 1) as last_schedule,
    (select key from page order by schedule desc, key desc limit 1) as last_key,
    (select count(*) from gone) as gone
