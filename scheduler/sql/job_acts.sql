-- job acts: what people did with a job, and to the schedule that made it, oldest first. Rows: one per act. Locks: none. Index: act_subject.
select at, actor, kind, subject, reason, before, after
from {schema}.act
where subject = %(subject)s
order by id
