-- schedule lock: one schedule as it is stored, under its lock. Rows: one or none.
-- same: whether %(definition)s is what it already is, asked here since what JSON keeps of a number or a tuple is not what Python had (null
-- where no definition is given). present: whether a process of the release that put it here was seen since %(patience)s seconds ago; what a person
-- put there stays present.
-- Locks: the schedule's row. Index: schedule_pkey; presence is as small as the number of processes.
select s.definition, s.definition = %(definition)s::jsonb as same, s.number,
    s.release is null or exists (
        select from {schema}.presence p
        where p.release = s.release and p.seen_at >= (select {schema}.clock()) - make_interval(secs => %(patience)s)
    ) as present,
    s.paused, s.deleted_at, s.ledger_from, s.zone_version, s.zone_hash,
    (select {schema}.clock()) as now
from {schema}.schedule s
where s.name = %(name)s
for update of s
