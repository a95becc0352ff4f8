-- measure leased: how many jobs are leased, and of how many the lease has run out, by queue and task. Rows: (queue, task, running, expired).
-- Locks: none. Index: job_leased (the running jobs).
with instant as materialized (select {schema}.clock() as now)
select queue, task, count(*) filter (where lease_until >= (select now from instant)) as running,
    count(*) filter (where lease_until < (select now from instant)) as expired
from {schema}.job
where status = 'leased'
group by queue, task
