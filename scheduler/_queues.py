"""What an application says of its queues. The claim keeps to their limits (``claim_guarded.sql``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler._connect import Connection
from scheduler._sql import Statements
from scheduler._tasks import check_name


@dataclass(frozen=True, slots=True)
class Queue:
    """A declared queue: how late its jobs may be, in seconds, and how many of them may run at a time."""

    name: str
    acceptable_lag: float | None
    limit: int | None


def make_queue(name: str, acceptable_lag: float | None, limit: int | None) -> Queue:
    """Check what is said of a queue. Raises ``ValueError`` that names the queue and the setting."""
    check_name("queue", name)
    if acceptable_lag is not None and not (
        isinstance(acceptable_lag, int | float) and 0 < acceptable_lag < float("inf")
    ):
        raise ValueError(f"queue {name!r}: acceptable_lag= is a number of seconds above 0, not {acceptable_lag!r}")
    if limit is not None and (type(limit) is not int or not 1 <= limit < 2**31):
        raise ValueError(f"queue {name!r}: limit= is a whole number from 1, or None for no limit, not {limit!r}")
    return Queue(name, acceptable_lag, limit)


def store_queues(connection: Connection, statements: Statements, queues: Iterable[Queue], actor: str) -> list[str]:
    """Store what is said of queues; return the names of those that changed. A changed limit is a line in the audit."""
    changed = []
    with connection.transaction():
        for queue in sorted(queues, key=lambda queue: queue.name):
            values = {"name": queue.name, "acceptable_lag": queue.acceptable_lag, "limit": queue.limit}
            row = connection.execute(statements["queue_store"], values).fetchone()
            if row is None:
                continue
            changed.append(queue.name)
            if row[0] != queue.limit:
                act = {
                    "actor": actor,
                    "kind": "queue limit changed",
                    "subject": f"queue/{queue.name}",
                    "reason": "declared by the code of a deployed version",
                    "before": json.dumps({"limit": row[0]}),
                    "after": json.dumps({"limit": queue.limit}),
                }
                connection.execute(statements["act"], act)
    return changed
