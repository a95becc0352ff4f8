-- issued: the issuer's name and the newest number that it has given out. Rows: one, or none if it was never installed.
-- Locks: none. Index: none; the table is one row, and a sequence too.
select i.name, s.last_value as newest from {schema}.issuer i, {schema}.token s
