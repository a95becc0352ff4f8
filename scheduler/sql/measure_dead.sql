-- measure dead: how many of the newest 10,000 dead jobs each queue has. Rows: (queue, dead). Locks: none. Index: job_dead, read backwards.
select queue, count(*) as dead
from (select queue from {schema}.job where status = 'dead' order by id desc limit 10000) newest
group by queue
