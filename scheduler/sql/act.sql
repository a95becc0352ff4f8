-- act: one line of the audit, in the transaction of what it tells. Rows: none. Locks: none. Index: writes act_subject.
insert into {schema}.act (at, actor, kind, subject, reason, before, after)
values ({schema}.clock(), %(actor)s, %(kind)s, %(subject)s, %(reason)s, %(before)s::jsonb, %(after)s::jsonb)
