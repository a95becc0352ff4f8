-- testing next: the next moment, after the present one, at which a waiting job or an occurrence of a schedule becomes due, for
-- scheduler.testing. Rows: one; null: there is none. Locks: none. Index: schedule_next, occurrence_due; none for the jobs, whose table is a test's and small.
with instant as materialized (select {schema}.clock() as now)
select least(
    (select min(due_at) from {schema}.job where status = 'ready' and due_at > (select now from instant)),
    (select min(due_at) from {schema}.occurrence where state = 'waiting' and due_at > (select now from instant)),
    (select min(next_at) from {schema}.schedule where not paused and deleted_at is null and next_at > (select now from instant))
) as next
