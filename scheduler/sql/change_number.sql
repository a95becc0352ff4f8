-- change number: the number of a person's change, above those of all releases so far. Rows: (number). Locks: none. Index: none.
select nextval(pg_get_serial_sequence({release_literal}, 'number'))
