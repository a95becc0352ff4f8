"""The event record: what happened, to whom, under which token, and how it ended.

Guards, schedulers and outboxes :func:`emit` events; whoever :func:`subscribe`\\ s gets each of them in the thread
where it happened. :class:`JsonLines` writes them to a file that several processes may share. Without a subscriber
nothing is built or kept. :func:`draw_text` and :func:`draw_html` show them.
"""

from fencing.history._events import Event, JsonLines, Kind, Outcome, emit, read_events, recording, subscribe
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
