"""The event record: what happened, to whom, under which token, and how it ended.

Guards, schedulers and outboxes :func:`emit` events; whoever :func:`subscribe`\\ s gets each of them in the thread
where it happened. :class:`JsonLines` writes them to a file that several processes may share. Without a subscriber
nothing is built or kept. :func:`draw_text` and :func:`draw_html` show them.
"""

from typing import TYPE_CHECKING, Any

from fencing.history._events import Event, JsonLines, Kind, Outcome, emit, read_events, recording, subscribe

if TYPE_CHECKING:
    from fencing.history._html import draw_html
    from fencing.history._terminal import draw_text

__all__ = [
    "Event",
    "JsonLines",
    "Kind",
    "Outcome",
    "draw_html",
    "draw_text",
    "emit",
    "read_events",
    "recording",
    "subscribe",
]


def __getattr__(name: str) -> Any:
    # Every fenced write imports this package, and few programs draw.
    if name == "draw_html":
        from fencing.history._html import draw_html

        return draw_html
    if name == "draw_text":
        from fencing.history._terminal import draw_text

        return draw_text
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
