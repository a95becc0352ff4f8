"""Storing schedules: added, changed, paused, resumed, deleted, each under the schedule's lock and with its audit.

Nothing here fires the past: whatever begins, begins now, and the cursor never falls.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal, NamedTuple

from scheduler._catch_up import Planned
from scheduler._releases import PATIENCE, Release, may_change
from scheduler._schedule import Schedule
from scheduler._schedules import Declared, next_after, stored_rule
from scheduler._sql import Run
from scheduler._zones import zone_data_version, zone_hash
from scheduler.errors import ScheduleError, UnknownScheduleError

Stored = Literal["added", "changed", "unchanged", "deferred", "deleted", "refused"]
"""What became of a declared schedule.

``deferred``: a newer release that is still running declares it otherwise. ``deleted``: a person deleted it after this
release was first seen. ``refused``: this process has older zone data than it was computed from.
"""

BATCH = 500
"""Schedules that are stored in one transaction."""


class Row(NamedTuple):
    """A schedule as ``schedule_lock.sql`` returns it."""

    definition: dict[str, Any]
    same: bool | None
    number: int
    present: bool
    paused: bool
    deleted_at: datetime | None
    ledger_from: datetime | None
    zone_version: str
    zone_hash: str
    now: datetime


def sync(run: Run, declared: Collection[Declared], release: Release, actor: str) -> dict[str, Stored]:
    """Store what a process declares; return what became of each. What is as it should be costs one statement for
    all."""
    by_name = {one.name: one for one in declared}
    found = run(
        "schedules_compare",
        names=list(by_name),
        definitions=[one.text for one in declared],
        number=release.number,
    )
    answers: dict[str, Stored] = dict.fromkeys(by_name, "unchanged")
    adopted = _adopt(run, [by_name[name] for name, _, same in found if same], release)
    # In one order for every process, and many together, so that a thousand new ones do not cost as many commits.
    differing = sorted((name, new) for name, new, _ in found if name not in adopted)
    for first in range(0, len(differing), BATCH):
        batch = dict(differing[first : first + BATCH])
        with run.connection.transaction():
            added = add(
                run, [by_name[name] for name, new in batch.items() if new], release, actor, _declared_by(release)
            )
            for name in batch:
                if name in added:
                    answers[name] = "added"
                else:
                    answers[name] = store(run, by_name[name], release, actor, _declared_by(release))
    return answers


def _adopt(run: Run, equal: Collection[Declared], release: Release) -> set[str]:
    """Make what is stored as a release declares it that release's; return the names of what is so still."""
    if not equal:
        return set()
    names, definitions = [one.name for one in equal], [one.text for one in equal]
    adopted = run("schedules_adopt", names=names, definitions=definitions, release=release.id, number=release.number)
    return {name for (name,) in adopted}


def _declared_by(release: Release) -> str:
    return f"declared by release {release.id}"


def add(run: Run, declared: Collection[Declared], release: Release, actor: str, reason: str) -> set[str]:
    """Add schedules that begin now; return the names of those that were not there."""
    if not declared:
        return set()
    now = run("now")[0][0]
    rows = []
    for one in declared:
        next_at = next_after(one.rule, now)
        rows.append(one.columns() | {"next_at": next_at.isoformat() if next_at else None})
    return {
        name
        for (name,) in run(
            "schedules_insert",
            schedules=json.dumps(rows),
            now=now,
            release=release.id,
            number=release.number,
            actor=actor,
            reason=reason,
        )
    }


def store(run: Run, declared: Declared, release: Release, actor: str, reason: str) -> Stored:
    """Store one schedule as a release declares it, or a person (``release.id`` is None) wants it."""
    with run.connection.transaction():
        if add(run, [declared], release, actor, reason):
            return "added"
        row = lock(run, declared.name, declared.text)
        if row is None:  # between the two statements nobody deletes a row: it is never deleted
            raise UnknownScheduleError(f"no schedule {declared.name!r}")
        if row.same and row.deleted_at is None:
            return "unchanged"
        if not may_change(row.number, row.present, release.number):
            return "deleted" if row.deleted_at is not None else "deferred"
        if row.deleted_at is None and _older_zone(row, declared.rule.tz):
            return "refused"
        number = release.ahead_of(run, row.number)
        now, until = run("schedule_change", **declared.parameters(), release=release.id, number=number)[0]
        run("schedule_supersede", name=declared.name, reason="schedule changed")
        restart(run, declared.name, declared.rule, now, until, paused=row.paused)
        back = row.deleted_at is not None
        kind, before = ("schedule added", None) if back else ("schedule changed", row.definition)
        tell(run, declared.name, kind, actor, reason, before, declared.definition())
        return "added" if back else "changed"


def lock(run: Run, name: str, definition: str | None = None) -> Row | None:
    """Return a schedule under its lock, deleted or not; None if there never was one."""
    found = run("schedule_lock", name=name, definition=definition, patience=PATIENCE)
    return Row._make(found[0]) if found else None


def lock_live(run: Run, name: str) -> Row:
    """Return a schedule under its lock. Raises :class:`UnknownScheduleError` if there is none, or no longer."""
    row = lock(run, name)
    if row is None or row.deleted_at is not None:
        raise UnknownScheduleError(
            f"no schedule {name!r}{f': it was deleted at {row.deleted_at}' if row is not None else ''}; "
            "`fencing schedules list` names those that there are"
        )
    return row


def pause(run: Run, name: str, actor: str, reason: str) -> bool:
    """Stop a schedule: what was put ahead is withdrawn, what is due stays. Return False if it was paused already."""
    with run.connection.transaction():
        if lock_live(run, name).paused:
            return False
        run("schedule_pause", name=name)
        run("schedule_supersede", name=name, reason="schedule paused")
        tell(run, name, "schedule paused", actor, reason, None, None)
        return True


def resume(run: Run, name: str, actor: str, reason: str) -> bool:
    """Let a paused schedule go on from now; what was due meanwhile is not made. Return False if it was not paused."""
    with run.connection.transaction():
        row = lock_live(run, name)
        if not row.paused:
            return False
        rule = stored_rule(name, row.definition)
        refuse_older_zone(row)
        now, until = run("schedule_resume", name=name)[0]
        restart(run, name, rule, now, until)
        tell(run, name, "schedule resumed", actor, reason, None, None)
        return True


def delete(run: Run, name: str, actor: str, reason: str) -> None:
    """Delete a schedule: what was put ahead is withdrawn, what waited for its turn skipped; jobs that are due stay."""
    with run.connection.transaction():
        row = lock_live(run, name)
        run("schedule_supersede", name=name, reason="schedule deleted")
        run("schedule_delete", name=name, number=change_number(run))
        tell(run, name, "schedule deleted", actor, reason, row.definition, None)


def change_number(run: Run) -> int:
    """Return the number of a person's change: newer than every release so far."""
    return int(run("change_number")[0][0])


def restart(run: Run, name: str, rule: Schedule, now: datetime, until: datetime, *, paused: bool = False) -> None:
    """Make anew what lies between now and the cursor, which the caller has withdrawn, unless nothing is due of a paused
    one, and say when it is due next."""
    ahead = rule.occurrences(now, until) if until > now and not paused else []
    materialise(run, [(name, Planned(one, None)) for one in ahead])
    run(
        "schedules_advance",
        names=[name],
        untils=[until],
        nexts=[next_after(rule, until)],
        zone_versions=[zone_data_version()],
        zone_hashes=[zone_hash(rule.tz)],
    )


def materialise(
    run: Run, planned: Collection[tuple[str, Planned]], *, backfilled: bool = False
) -> list[tuple[str, str, str]]:
    """Write occurrences, given with their schedules, into the ledger, with their jobs; return (schedule, key, state) of
    each that was not there before."""
    if not planned:
        return []
    fresh = run(
        "materialise",
        schedules=[name for name, _ in planned],
        keys=[one.occurrence.key for _, one in planned],
        dues=[one.occurrence.due_at for _, one in planned],
        nominals=[one.occurrence.nominal for _, one in planned],
        reasons=[one.skipped for _, one in planned],
        backfilled=backfilled,
    )
    return [(name, key, state) for name, key, state, _ in fresh]


def refuse_older_zone(row: Row) -> None:
    """Raise :class:`ScheduleError` if this process has older zone data than the schedule was computed from."""
    if _older_zone(row, row.definition["tz"]):
        raise ScheduleError(_zone_problem(row), expr=row.definition["tz"], field="tz", length=len(row.definition["tz"]))


def _older_zone(row: Row, tz: str) -> bool:
    """Whether this process would compute the schedule from older data than others did, and otherwise than they."""
    return tz == row.definition["tz"] and row.zone_version > zone_data_version() and row.zone_hash != zone_hash(tz)


def _zone_problem(row: Row) -> str:
    return (
        f"the schedule was computed from zone data {row.zone_version}, this process has {zone_data_version()}: "
        "update the tzdata package"
    )


def tell(run: Run, name: str, kind: str, actor: str, reason: str, before: Any = None, after: Any = None) -> None:
    """Write a line about a schedule into the audit."""
    run(
        "act",
        actor=actor,
        kind=kind,
        subject=f"schedule/{name}",
        reason=reason,
        before=json.dumps(before) if before is not None else None,
        after=json.dumps(after) if after is not None else None,
    )
