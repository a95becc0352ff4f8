-- schedule pause: nothing is due until it is resumed. Rows: none. Locks: the schedule's row (already held). Index: schedule_pkey, schedule_next.
update {schema}.schedule set paused = true, changed_at = (select {schema}.clock()) where name = %(name)s
