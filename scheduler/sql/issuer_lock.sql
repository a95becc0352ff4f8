-- issuer lock: read the issuer's row under its lock, and what the server is now. Rows: one, or none if it was never installed.
-- Locks: the row of issuer. Whoever waits here reads again afterwards and finds the change done. Index: none; the table is one row.
select name, lineage, identity, {schema}.identity() as live_identity, floor,
    (extract(epoch from {schema}.clock() - timestamptz '2025-01-01 00:00:00+00') * 1000)::bigint as clock_ms
from {schema}.issuer
for update
