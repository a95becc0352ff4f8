"""What the picture calls the actors and downstreams of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fencing.history import Event


def lane_names(events: Sequence[Event], actors: Mapping[int, str], redis: str) -> dict[str, str]:
    """A name for each lane, in the order of the lanes.

    ``actors`` names the workers by process id; ``redis`` is what that server is.
    """
    pids = {event.actor: event.pid for event in events if event.kind == "claim"}
    relays = {event.actor for event in events if event.kind == "claim" and event.downstream == "outbox"}
    workers = {actor: actors[pid] for actor, pid in pids.items() if pid in actors and actor not in relays}
    places = {}
    for event in events:
        if event.downstream.startswith("postgresql"):
            places[event.downstream] = "PostgreSQL"
        elif event.downstream.startswith("redis"):
            places[event.downstream] = redis
        elif event.downstream.startswith("smtp"):
            places[event.downstream] = "mail server"
    order = ["scheduler", "PostgreSQL", redis, "outbox", "mail server"]
    downstreams = {"scheduler": "scheduler", "outbox": "outbox", **places}
    return {
        **dict(sorted(workers.items(), key=lambda item: item[1])),
        **{actor: f"relay of {actors[pids[actor]][-1]}" for actor in relays},
        **dict(sorted(downstreams.items(), key=lambda item: order.index(item[1]))),
    }
