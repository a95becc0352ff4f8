-- job lock free: hold jobs still, but for those that somebody else holds. For who decides about several at once: to wait for one while holding another
-- is a deadlock with a settlement, which takes its jobs in an order of its own (what completed, then the rest).
-- Rows: (id) of each job that is held now. Locks: the jobs' rows, in the order of id, passing by what others hold. Index: job_pkey.
select id
from {schema}.job
where id = any(%(ids)s::bigint[])
order by id
for update skip locked
