-- One range of the claim: the due jobs of one task in one queue. A part of claim.sql, one per queue and task of the worker, so that
-- jobs of other tasks cost nothing however many there are. PostgreSQL allows no FOR UPDATE directly below UNION, hence the wrapping.
-- Rows: (id, priority, due_at), in run order. Locks: the rows, skipping those that others hold. Index: job_ready, one range of it.
select * from (
    select id, priority, due_at from {schema}.job
    where status = 'ready' and queue = {queue} and task = {task} and due_at <= (select now from instant)
    order by priority desc, due_at, id
    limit %(batch)s
    for update skip locked
) arm
