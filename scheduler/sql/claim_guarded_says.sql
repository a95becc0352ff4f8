-- The end of the guarded claim, which says more than the jobs that it took.
-- Rows: always at least one: ok: the issuer's identity is the live one; free: there was a turn; met_others: others are claiming what was seen;
--   contended: others were claiming what this one wanted, look again at once; waiting: there are exclusive jobs or limited queues at all; last: the
--   value to go on after, null for from the start; then a job, whose id is null where nothing is due (or everything due is being claimed by others).
--   No row at all: the issuer was never installed. Locks: none. Index: none.
)
select l.ok, l.free, coalesce((select sum(most) from quota) > cardinality((select ids from picked)), false) as met_others,
    exists (select from wanted where not slots <@ (select slots from sure)) as contended,
    exists (select from walked) or exists (select from room) as waiting,
    (select min(value) from walked where number = %(values)s) as last,
    c.*
from live l left join claimed c on true
order by c.token
