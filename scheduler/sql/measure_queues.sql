-- measure queues: the queues of which an acceptable lag was stated, in seconds. Rows: (name, acceptable_lag). Locks: none. Index: none; the table is small.
select name, acceptable_lag from {schema}.queue where acceptable_lag is not null
