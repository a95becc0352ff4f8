"""Newer zone data: what lies ahead is computed anew, and what was moved into the past is not lost.

Wall-time keys hold no instant, so an occurrence that newer data moves remains the same occurrence. One that ran is in
the ledger and does not run again; one that was ahead of the cursor and is now behind it would never be made, and is
looked for here.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from scheduler._catch_up import plan_catch_up
from scheduler._gate import tell_skipped
from scheduler._occurrence import Occurrence
from scheduler._schedule import Schedule
from scheduler._schedule_store import materialise, tell
from scheduler._schedules import next_after, stored_rule
from scheduler._sql import Run
from scheduler._zones import zone_data_version, zone_hash

LOOK_BACK = timedelta(hours=26)
"""How far newer data can move an occurrence: from one end of the world's offsets to the other."""


class Outdated(NamedTuple):
    """A schedule that was computed from older data, as ``schedules_rezone.sql`` returns it."""

    name: str
    definition: dict[str, Any]
    catch_up: Any
    catch_up_limit: int
    grace: float | None
    paused: bool
    begins_at: datetime
    materialised_until: datetime
    next_at: datetime | None
    zone_version: str
    zone_hash: str
    now: datetime


def rezone(run: Run, row: Outdated, actor: str) -> bool:
    """Compute a schedule, whose row is locked, from this process's zone data; return whether its zone had changed."""
    version, fresh = zone_data_version(), zone_hash(row.definition["tz"])
    changed = row.zone_hash != fresh
    rule = stored_rule(row.name, row.definition)
    next_at = row.next_at
    if changed:
        run("schedule_supersede", name=row.name, reason=f"zone data {version}")
        if not row.paused:
            grace = None if row.grace is None else timedelta(seconds=row.grace)
            missing = _missing(run, row, rule)
            planned = plan_catch_up(missing, row.now, row.catch_up, row.catch_up_limit, grace)
            made = {key for _, key, _ in materialise(run, [(row.name, one) for one in planned])}
            skipped = [one for one in planned if one.skipped and one.occurrence.key in made]
            if skipped:  # all for one reason: it is the policy's
                tell_skipped(run, row.name, actor, str(skipped[0].skipped), [one.occurrence.key for one in skipped])
        next_at = next_after(rule, row.materialised_until)
    run(
        "schedules_advance",
        names=[row.name],
        untils=[row.materialised_until],
        nexts=[next_at],
        zone_versions=[version],
        zone_hashes=[fresh],
    )
    if changed:
        before = {"zone_version": row.zone_version, "zone_hash": row.zone_hash, "next_at": _text(row.next_at)}
        after = {"zone_version": version, "zone_hash": fresh, "next_at": _text(next_at)}
        tell(run, row.name, "zone data changed", actor, f"zone data {version} is installed", before, after)
    return changed


def _missing(run: Run, row: Outdated, rule: Schedule) -> list[Occurrence]:
    """The occurrences up to the cursor that the ledger does not have."""
    if rule.elapsed:  # its keys are instants: none of them moves, and the past had its own
        return rule.occurrences(row.now, row.materialised_until) if row.now < row.materialised_until else []
    after = max(row.begins_at, row.materialised_until - LOOK_BACK)
    since = (after - 2 * LOOK_BACK).astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    done = run("ledger_since", name=row.name, since=since)
    keys, nominals = {key for key, _ in done}, {nominal for _, nominal in done}
    found = rule.occurrences(after, row.materialised_until) if after < row.materialised_until else []
    # Another fold of a local time that was done is another occurrence only where the schedule wants both.
    return [one for one in found if one.key not in keys and (rule.fold == "both" or one.nominal not in nominals)]


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
