"""The event record: what happened, to whom, under which token, and how it ended.

Guards, schedulers and outboxes :func:`emit` events; whoever :func:`subscribe`\\ s gets each of them in the thread
where it happened. :class:`JsonLines` writes them to a file that several processes may share. Without a subscriber
nothing is built or kept. :func:`check_history` says whether they can be explained without a broken promise,
:func:`draw_text` and :func:`draw_html` show them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fencing.history._events import (
    Event,
    JsonLines,
    Kind,
    Outcome,
    effects,
    emit,
    named_effects,
    recording,
    subscribe,
)

if TYPE_CHECKING:
    from fencing.history._check import Checked, check_history
    from fencing.history._html import draw_html
    from fencing.history._read import read_events
    from fencing.history._terminal import draw_text
    from fencing.history._violations import Violation

__all__ = [
    "Checked",
    "Event",
    "JsonLines",
    "Kind",
    "Outcome",
    "Violation",
    "check_history",
    "draw_html",
    "draw_text",
    "effects",
    "emit",
    "named_effects",
    "read_events",
    "recording",
    "subscribe",
]


_LAZY = {
    "Checked": "_check",
    "Violation": "_violations",
    "check_history": "_check",
    "draw_html": "_html",
    "draw_text": "_terminal",
    "read_events": "_read",
}


def __getattr__(name: str) -> Any:
    # Every fenced write imports this package, and few programs read, check or draw.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
