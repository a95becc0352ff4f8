-- schedules advance: move the cursors. Rows: none. A cursor only grows, and so does the version of the zone data: a process with older data whose
-- zone is the same leaves the newer one's name.
-- Locks: the schedules' rows (already held). Index: schedule_pkey, schedule_next.
update {schema}.schedule s
set materialised_until = greatest(s.materialised_until, n.until), next_at = n.next_at,
    zone_version = greatest(s.zone_version, n.zone_version), zone_hash = n.zone_hash
from unnest(%(names)s::text[], %(untils)s::timestamptz[], %(nexts)s::timestamptz[], %(zone_versions)s::text[], %(zone_hashes)s::text[])
    n(name, until, next_at, zone_version, zone_hash)
where s.name = n.name
