-- oldest live token: with which oldest token may somebody here still write? Also one whose lease ran out and was not taken back: its holder
--   may be at work. Rows: one (issuer, token, lineage), where nobody holds anything the newest number that was given out; none if the issuer was
--   never installed.
-- Locks: none. Index: job_leased (the running jobs); lease is small.
with held as (
    select token, lineage from {schema}.job where status = 'leased'
    union all
    select token, lineage from {schema}.lease
)
select i.name as issuer, coalesce(oldest.token, s.last_value) as token, coalesce(oldest.lineage, i.lineage) as lineage
from {schema}.issuer i cross join {schema}.token s
left join lateral (select token, lineage from held order by token limit 1) oldest on true
