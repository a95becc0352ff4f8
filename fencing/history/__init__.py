"""The event record: what happened, to whom, under which token, and how it ended.

Guards, schedulers and outboxes :func:`emit` events; whoever :func:`subscribe`\\ s gets each of them in the thread
where it happened. :class:`JsonLines` writes them to a file that several processes may share. Without a subscriber
nothing is built or kept.
"""

from fencing.history._events import Event, JsonLines, Kind, Outcome, emit, read_events, recording, subscribe

__all__ = ["Event", "JsonLines", "Kind", "Outcome", "emit", "read_events", "recording", "subscribe"]
