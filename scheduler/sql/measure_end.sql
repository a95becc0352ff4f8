-- measure end: a worker that stops is no longer there. What it measured stays for its hour. Rows: none. Locks: its own row. Index: worker_pkey.
delete from {schema}.worker where owner = %(owner)s
