-- What the guarded claim says besides the jobs. Rows: contended: others were claiming what this one wanted, look again at once; waiting: there are
-- exclusive jobs or limited queues at all; last: the value to go on after, null for from the start. Locks: none. Index: none.
exists (select from wanted where not slots <@ (select slots from sure)) as contended,
exists (select from walked) or exists (select from room) as waiting,
(select min(value) from walked where number = %(values)s) as last
