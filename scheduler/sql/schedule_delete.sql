-- schedule delete: gone for everybody, yet the row stays: its ledger and cursor hold for whoever brings the name back. Its number is a person's, so
-- that a release which was there before does not bring it back. What waited for its turn is skipped. Rows: none.
-- Locks: the schedule's row (already held), its waiting occurrences. Index: schedule_pkey, occurrence_waiting.
with instant as materialized (select {schema}.clock() as now),
skipped as (
    update {schema}.occurrence set state = 'skipped', reason = 'schedule deleted' where schedule = %(name)s and state = 'waiting'
)
update {schema}.schedule
set deleted_at = (select now from instant), changed_at = (select now from instant), next_at = null, paused = false, release = null,
    number = %(number)s
where name = %(name)s
