"""Messages of one order key: one after the other.

Whether a message's turn has come is decided by the claim, which looks for an older one that is not at its end. But a
thousand messages behind one that takes its time must not be looked at by every claim: so a message that is put behind
another one is *parked*, out of the claim's index, and woken when that one ends. Parking is a hint and waking is
harmless. A message that was put while the one before ended may miss its call; a sweep of the relay finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adapters._tx import Plan, Statement
from adapters.email._sql import among, ids
from adapters.email._states import PARKED, UNFINISHED, sql_list

SWEPT = 100
"""Order keys that one sweep looks at."""

NEXT = "(select min(n.id) from fencing_outbox n where n.order_key = d.order_key and n.waits and n.state = 'pending')"
"""The oldest parked message of the order key of ``d``."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Parked messages whose turn has come, and where the next sweep goes on: behind this order key, or at the
    beginning."""

    free: tuple[int, ...]
    last: str | None


def wake_plan(finished: Sequence[int], dialect: str) -> Plan[None]:
    """Wake those that waited for these messages, which are at their end."""
    if finished:
        yield Statement(
            f"update fencing_outbox set waits = false where id in (select {NEXT} from fencing_outbox d"
            f" where d.id {among(dialect, 'ids')} and d.order_key is not null)",
            {"ids": ids(dialect, finished)},
        )


def sweep_plan(after: str | None) -> Plan[Swept]:
    """Look at the parked messages of some order keys, those behind ``after``: one probe of an index for each key."""
    behind = "" if after is None else " and order_key > :after"
    rows = yield Statement(
        "with recursive parked(order_key, n) as ("
        f" select (select min(order_key) from fencing_outbox where {PARKED}{behind}), 1"
        f" union all select (select min(o.order_key) from fencing_outbox o where {_of('o')} and o.order_key >"
        " parked.order_key), parked.n + 1 from parked where parked.order_key is not null and parked.n < :swept)"
        " select d.order_key, d.id, exists(select 1 from fencing_outbox e where e.order_key = d.order_key"
        f" and e.order_key is not null and e.state in {sql_list(UNFINISHED)}"
        " and (e.order_key, e.id) < (d.order_key, d.id)) from"
        f" (select order_key, (select min(o.id) from fencing_outbox o where {_of('o')}"
        " and o.order_key = parked.order_key) as id from parked where order_key is not null) as d order by d.order_key",
        {"swept": SWEPT, **({} if after is None else {"after": after})},
    )
    free = tuple(number for _, number, blocked in rows if number is not None and not blocked)
    return Swept(free, rows[-1][0] if len(rows) == SWEPT else None)


def unpark_plan(free: Sequence[int], dialect: str) -> Plan[None]:
    """Wake these messages."""
    yield Statement(
        f"update fencing_outbox set waits = false where id {among(dialect, 'ids')}", {"ids": ids(dialect, free)}
    )


def _of(alias: str) -> str:
    return PARKED.replace("waits", f"{alias}.waits").replace("state", f"{alias}.state")
