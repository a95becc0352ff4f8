-- turn: whether a turn to claim is free (see claim.sql). A worker to which nothing but a turn was missing asks so little, before it claims again.
-- Rows: one (free). Locks: a turn, for the length of this statement. Index: none, it reads no table.
select {turn} as free
