-- prune turn: take the pruner's turn, and read how far its pass has come. Whoever finds it taken has nothing to do.
-- Rows: one, or none if another process is pruning right now. Locks: the row of pruning, until the end of the transaction; skipped if held.
-- Index: none; the table is one row.
select job_after, act_after, lease_after, occurrence_schedule, occurrence_key from {schema}.pruning for update skip locked
