"""What the pictures say of an event, in words. Pure."""

from __future__ import annotations

from typing import NamedTuple

from fencing.history._events import Event

_VERBS = {
    "claim": "claims",
    "raise": "raises the fence of",
    "write": "writes",
    "put": "puts",
    "settle": "settles",
    "renew": "renews",
    "send": "sends",
    "start": "starts",
    "commit": "commits",
    "adopt": "adopts",
}


class Said(NamedTuple):
    """A sentence: ``subject`` and ``text``, and ``end``, how it ended where that is no matter of course. The end is in
    capitals, since it must be seen without colour too."""

    subject: str
    text: str
    end: str


def say(event: Event, who: str, token: str, mark: str, stopped: float, *, broken: bool) -> Said:
    """Tell an event.

    ``token`` and ``mark`` are the short names of its token and of a newer one that it met ("": none), ``stopped`` the
    seconds for which a waking actor had been stopped; ``broken``: it was accepted in spite of ``mark``.
    """
    what = ", ".join(event.resources)
    if event.kind in _VERBS:
        verb = "puts" if event.kind == "write" and what.startswith("outbox/") else _VERBS[event.kind]
        how = f"as {event.detail}" if event.kind == "settle" and event.detail else ""
        under = f"{'to' if event.kind == 'raise' else 'under'} {token}" if token else ""
        return Said(who, " ".join(filter(None, (verb, what, how, under))), _end(event, mark, broken=broken))
    if event.kind == "look":
        return Said(who, f"finds {', '.join(event.effects) or 'nothing'} in {what}", "")
    if event.kind == "expire":
        return Said(f"the lease of {who}", f"on {what} has run out", "")
    if event.kind == "rescue":
        return Said(what or who, f"is taken back from {who}" if what else "is given up", "")
    if event.kind == "failover":
        return Said(
            event.downstream, "is replaced by its standby" + (f" ({what}: {token or 'no mark'})" if what else ""), ""
        )
    text = {
        "pause": "is stopped" + (f" ({event.detail})" if event.detail else ""),
        "wake": "wakes up" + (f" after {stopped:.1f} s" if stopped else "") + " and carries on",
        "kill": "is killed",
    }.get(event.kind, event.detail)
    return Said(who, text, "")


def _end(event: Event, mark: str, *, broken: bool) -> str:
    if broken:
        return f"ACCEPTED, though {mark} had been here: damage"
    if event.outcome == "refused":
        return "REFUSED" + (f", the mark is {mark}" if mark else f" ({event.error})" if event.error else "")
    return {
        "lost": "LOST: taken over meanwhile",
        "unknown": "OUTCOME UNKNOWN",
        "contention": "NOT WRITTEN: somebody else held it for too long",
        "failed": f"FAILED ({event.error or event.detail or 'no reason given'})",
    }.get(event.outcome, "")
