"""Refusals, counted, logged and told to whoever asks: every guard's alike, where ``fenced_write()`` sees them.

A refused write is the one thing that fencing is there for, and somebody should hear of it: a worker was paused for
longer than its lease, or something writes past its time.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from fencing._token import Token
from fencing.errors import FenceRejected

log = logging.getLogger("fencing.refusals")

_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused write.

    ``kind``: the error's name (``"StaleTokenError"``). ``presented`` and ``presenter``: whose token was refused.
    ``mark`` and ``holder``: whose mark refused it, None where there is none. ``late``: how long after the mark was set
    the write came, by the downstream's clock, None where it did not say. ``at``: when, by the clock of whoever wrote
    this down.
    """

    kind: str
    downstream: str
    resource: str
    presented: Token
    presenter: str
    mark: Token | None
    holder: str | None
    late: timedelta | None
    at: datetime

    def __str__(self) -> str:
        seen = f"the mark is {self.mark} of {self.holder or 'an unnamed holder'}" if self.mark else "there is no mark"
        late = f", set {self.late.total_seconds():.3f} s before" if self.late is not None else ""
        return (
            f"{self.kind}: {self.downstream} refused {self.presented} of {self.presenter} at {self.resource!r}: "
            f"{seen}{late}"
        )


Hook = Callable[[Refusal], object]

_lock = threading.Lock()
_counts: Counter[tuple[str, str]] = Counter()
_recent: deque[Refusal] = deque(maxlen=_KEPT)
_hooks: list[Hook] = []


def on_refusal(hook: Hook) -> Callable[[], None]:
    """Call ``hook(refusal)`` at every refusal in this process, on the thread that wrote; return what ends that.

    What a hook raises is logged, and changes nothing for the writer.
    """
    with _lock:
        _hooks.append(hook)

    def remove() -> None:
        with _lock:
            if hook in _hooks:
                _hooks.remove(hook)

    return remove


def refusal_counts() -> Mapping[tuple[str, str], int]:
    """How many refusals this process has met, by downstream and kind."""
    with _lock:
        return dict(_counts)


def recent_refusals(resource: str | None = None, downstream: str | None = None) -> tuple[Refusal, ...]:
    """The newest refusals that this process has met (at most 256 are kept), newest first."""
    with _lock:
        kept = list(_recent)
    return tuple(
        refusal
        for refusal in reversed(kept)
        if (resource is None or refusal.resource == resource)
        and (downstream is None or refusal.downstream == downstream)
    )


def note(error: FenceRejected, resources: tuple[str, ...], token: Token, presenter: str, downstream: str) -> None:
    """Count, log and tell one refusal, once however many blocks it leaves."""
    if error.__dict__.get("noted"):
        return
    error.__dict__["noted"] = True
    refusal = Refusal(
        type(error).__name__,
        error.downstream or downstream,
        error.resource or resources[0],
        error.presented or token,
        presenter,
        error.mark,
        error.holder,
        error.late,
        datetime.now(UTC),
    )
    with _lock:
        _counts[refusal.downstream, refusal.kind] += 1
        _recent.append(refusal)
        hooks = list(_hooks)
    log.warning("%s", refusal)
    for hook in hooks:
        try:
            hook(refusal)
        except Exception:
            log.exception("a hook for refusals failed")
