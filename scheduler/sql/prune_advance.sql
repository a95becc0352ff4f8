-- prune advance: remember how far the pass has come. Rows: none. Locks: the row of pruning (already held). Index: none; the table is one row.
update {schema}.pruning
set job_after = %(job_after)s, act_after = %(act_after)s, lease_after = %(lease_after)s,
    occurrence_schedule = %(occurrence_schedule)s, occurrence_key = %(occurrence_key)s
