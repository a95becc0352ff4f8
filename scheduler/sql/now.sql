-- now: the clock by which everything is decided. Rows: (now). Locks: none. Index: none.
select {schema}.clock()
