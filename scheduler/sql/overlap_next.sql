-- overlap next: is there anything to decide? Rows: (due, next_in): whether an occurrence that waits is due, and in how many seconds the next one is
-- that is not (null: none). Locks: none. Index: occurrence_due, its ends; it is empty where no schedule minds overlap.
with instant as materialized (select {schema}.clock() as now)
select exists (select from {schema}.occurrence where state = 'waiting' and due_at <= (select now from instant)) as due,
    (
        select extract(epoch from min(due_at) - (select now from instant))::float8
        from {schema}.occurrence
        where state = 'waiting' and due_at > (select now from instant)
    ) as next_in
