-- release renumber: this release is the last one now. Rows: (number). Locks: the release's row. Index: release_pkey.
update {schema}.release set number = nextval(pg_get_serial_sequence({release_literal}, 'number')) where id = %(release)s
returning number
