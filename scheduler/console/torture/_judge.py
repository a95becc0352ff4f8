"""What came of a run: what lies in the servers in the end, held against what everybody was told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from itertools import pairwise
from typing import Any, LiteralString

import psycopg
import redis

from adapters.redis import redis_key
from fencing import history
from fencing.history import Checked, Event, Violation, check_history
from scheduler.console.torture._servers import Servers
from scheduler.console.torture._work import ALL_ACCOUNTS, RELAY_LEASE

LOST, DOUBLED = "accepted write lost", "effect doubled"

LOSABLE = {LOST, "settled by an older holder", "settled twice"}
"""What a failover that loses acknowledged commits brings about by itself. A mark that survived it still refuses what is
older, no token falls, and what is lost takes its key with it: all else is the guards' own."""

KEPT_IN = {"scheduler": "postgresql", "outbox": "postgresql"}
"""In which server a downstream lies."""


@dataclass(frozen=True, slots=True)
class Found:
    """What lies in the servers: ``looks`` at the resources, jobs by key, outbox rows by key, when the copies of each
    mail arrived (nanoseconds of the monotonic clock), and where a token fell in the order of the rows."""

    looks: list[Event]
    jobs: dict[str, str]
    outbox: dict[str, str]
    arrivals: Mapping[str, Sequence[int]]
    fallen: list[Violation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """The figures. ``lost`` and ``doubles`` are told in words; ``by_failover`` is what an asynchronous failover took
    with it, which nothing here can prevent: counted apart."""

    seconds: float
    faults: dict[str, int]
    checked: Checked
    lost: list[str]
    doubles: list[str]
    violations: list[Violation]
    by_failover: list[str] = field(default_factory=list)
    jobs: int = 0
    dead: int = 0
    uncertain: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubles or self.violations)

    @property
    def effects(self) -> dict[str, int]:
        """Writes and raised fences by their end."""
        ends = self.checked.outcomes
        counts = {
            "attempted": sum(ends.values()),
            "accepted": ends.get("accepted", 0) + ends.get("repeated", 0),
            "refused": ends.get("refused", 0),
            "unknown": ends.get("unknown", 0),
        }
        return counts | {"not written": counts["attempted"] - sum(list(counts.values())[1:])}

    def as_json(self) -> dict[str, Any]:
        """The figures as JSON can hold them."""
        return {
            "seconds": round(self.seconds, 1),
            "faults": self.faults,
            "effects": self.effects,
            "violations": len(self.violations),
            "lost": len(self.lost),
            "doubles": len(self.doubles),
            "lost_by_failover": len(self.by_failover),
            "jobs": {"enqueued": self.jobs, "dead": self.dead},
            "mails": {"uncertain": self.uncertain},
            "told": [*map(str, self.violations[:20]), *self.lost[:20], *self.doubles[:20]],
        }


def look(servers: Servers) -> Found:
    """Look at everything, past all links."""
    looks: list[Event] = []
    fallen: list[Violation] = []
    with psycopg.connect(servers.postgres.dsn()) as connection:
        for account in ALL_ACCOUNTS:
            rows = connection.execute("select name, token from effect where account = %s order by number", [account])
            effects = rows.fetchall()
            looks.append(_look("postgresql", account, (name for name, _ in effects), "once"))
            fallen += _fallen(looks[-1], effects)
        jobs = _states(connection, "select key, status from fencing.job where key is not null")
        outbox: dict[str, str] = {}
        if connection.execute("select to_regclass('fencing_outbox')").fetchone() != (None,):
            outbox = _states(connection, "select key, state from fencing_outbox")
    with redis.Redis(port=servers.valkey.port, decode_responses=True) as client:
        for account in ALL_ACCOUNTS:
            found: Any = client.lrange(redis_key(account, "effects"), 0, -1)
            looks.append(_look("redis", account, found))
    arrivals: dict[str, list[int]] = {}
    for mail in servers.sink.received:
        arrivals.setdefault(message_from_bytes(mail.data)["Subject"], []).append(mail.at)
    return Found(looks, jobs, outbox, arrivals, fallen)


def _states(connection: psycopg.Connection[tuple[Any, ...]], statement: LiteralString) -> dict[str, str]:
    return {str(row[0]): str(row[1]) for row in connection.execute(statement)}


def _look(downstream: str, account: str, effects: Iterable[str], detail: str = "") -> Event:
    return history.Event("look", "done", "torture", downstream, (account,), effects=tuple(effects), detail=detail)


def _fallen(look: Event, effects: Sequence[tuple[str, int]]) -> Iterator[Violation]:
    """The rows say themselves under which token they were written: in their order it never falls."""
    for (before, newer), (after, older) in pairwise(effects):
        if older < newer:
            text = f"{after!r} of token {older} lies behind {before!r} of token {newer}"
            yield Violation("stale effect landed", look.downstream, look.resources[0], text, (look,))


def judge(
    seconds: float,
    faults: Mapping[str, int],
    events: Sequence[Event],
    found: Found,
    enqueued: Collection[str],
    *,
    synchronous: bool = True,
) -> Report:
    """Hold everything against everything. Unless ``synchronous``, failovers may lose what was acknowledged."""
    checked = check_history([*events, *found.looks])
    failed_over = [] if synchronous else [e for e in events if e.kind == "failover" and not e.resources]
    moments = sorted(event.began for event in failed_over if event.downstream == "postgresql")
    by_failover: list[str] = []
    violations: list[Violation] = []
    lost, doubles = [], []
    for violation in (*checked.violations, *found.fallen):
        if violation.rule in LOSABLE and _spans(violation, failed_over):
            by_failover.append(str(violation))
        elif violation.rule == LOST:
            lost.append(str(violation))
        elif violation.rule == DOUBLED:
            doubles.append(str(violation))
        else:
            violations.append(violation)
    for key in enqueued:
        state = found.jobs.get(key, "missing")
        if state in ("completed", "dead"):
            continue
        (by_failover if moments and state == "missing" else lost).append(f"the job {key!r} is {state}")
    if found.outbox:  # none without guards
        ended = (key for key in enqueued if found.jobs.get(key) == "completed")
        gone = [f"the job {key!r} is completed, and its mail is not there" for key in ended if key not in found.outbox]
        lost.extend(gone)
    unfinished = sorted((key, state) for key, state in found.outbox.items() if state not in ("sent", "uncertain"))
    lost += [f"the mail {key!r} is {state}" for key, state in unfinished]
    for key, arrivals in found.arrivals.items():
        copies = len(arrivals) - 1
        forgotten = min(copies, _forgotten(sorted(arrivals), moments))
        by_failover += [f"the mail {key!r} arrived again"] * forgotten
        doubles += [f"the mail {key!r} arrived again"] * (copies - forgotten)
    lost += [f"the mail {key!r} is sent and never arrived" for key in _sent(found) if key not in found.arrivals]
    return Report(
        seconds,
        dict(faults),
        checked,
        lost,
        doubles,
        violations,
        by_failover,
        len(enqueued),
        sum(state == "dead" for state in found.jobs.values()),
        sum(state == "uncertain" for state in found.outbox.values()),
    )


def _sent(found: Found) -> list[str]:
    return [key for key, state in found.outbox.items() if state == "sent"]


def _spans(violation: Violation, failed_over: Sequence[Event]) -> bool:
    """Whether a failover of its server lies between the first and the last of the events."""
    first, last = min(e.began for e in violation.events), max(e.ended for e in violation.events)
    server = KEPT_IN.get(violation.downstream, violation.downstream).partition(":")[0]
    return any(event.downstream == server and first <= event.began <= last for event in failed_over)


def _forgotten(arrivals: Sequence[int], moments: Sequence[int]) -> int:
    """How many failovers can have lost that a mail was on its way: that is committed at most a lease before its
    content leaves, which takes a moment to arrive."""
    earliest = arrivals[0] - int(2 * RELAY_LEASE * 1e9)
    return sum(earliest <= moment <= arrivals[-1] for moment in moments)
