-- release seen: this process runs that release, now. Rows: (number), the release's place among all that ever changed a schedule: a new one comes
-- last. Processes that have not been seen for a day are forgotten.
-- Locks: the process's row. Index: release_pkey, presence_pkey.
with instant as materialized (select {schema}.clock() as now),
known as (
    insert into {schema}.release (id, first_seen)
    select %(release)s, now from instant where not exists (select from {schema}.release where id = %(release)s)
    on conflict (id) do nothing
    returning number
),
present as (
    insert into {schema}.presence (owner, release, seen_at) select %(owner)s, %(release)s, now from instant
    on conflict (owner) do update set release = excluded.release, seen_at = excluded.seen_at
),
gone as (
    delete from {schema}.presence
    where owner = any(array(
        select owner from {schema}.presence where seen_at < (select now from instant) - interval '1 day' and owner <> %(owner)s
        for update skip locked
    ))
)
select number from known union all select number from {schema}.release where id = %(release)s limit 1
