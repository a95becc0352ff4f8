-- release left: this process has ended. Rows: none. Locks: the process's row. Index: presence_pkey.
delete from {schema}.presence where owner = %(owner)s
