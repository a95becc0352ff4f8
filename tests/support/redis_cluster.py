"""A cluster of three real servers, and a Sentinel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from scheduler.console.embedded import Valkey
from scheduler.console.embedded._place import Place
from support.servers import REDIS, available
from support.waiting import eventually

SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))


@contextlib.contextmanager
def cluster(**settings: str) -> Iterator[list[Valkey]]:
    """Three primaries without replicas that share the slots; the first serves 0 to 5460."""
    with contextlib.ExitStack() as stack:
        with available():
            nodes = [
                stack.enter_context(Valkey(program=REDIS, settings={"cluster-enabled": "yes", **settings}))
                for _ in SLOTS
            ]
        for number, (node, (first, last)) in enumerate(zip(nodes, SLOTS, strict=True)):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            node.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for node in nodes[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", str(nodes[0].port))
        eventually(lambda: all(agrees(node) for node in nodes), "all nodes see the whole cluster")
        yield nodes


def agrees(node: Valkey) -> bool:
    """Whether the node sees the whole cluster."""
    told = node.command("CLUSTER", "INFO")
    return "cluster_state:ok" in told and "cluster_known_nodes:3" in told


def node_id(node: Valkey) -> str:
    """What the node is called in the cluster."""
    return node.command("CLUSTER", "MYID").strip()


class Sentinel(Valkey):
    """The same program as a Sentinel that watches one primary under the name ``main``."""

    def __init__(self, primary: Valkey) -> None:
        super().__init__(program=REDIS)
        self._primary = primary

    def _prepare(self, place: Place) -> None:
        super()._prepare(place)
        configuration = place.home / "server.conf"
        configuration.write_text(
            f"bind 127.0.0.1\nsentinel monitor main 127.0.0.1 {self._primary.port} 1\n"
            "sentinel down-after-milliseconds main 1500\nsentinel failover-timeout main 2000\n"
        )
        place.give(configuration)

    def _command(self, port: int) -> list[str]:
        return [*super()._command(port), "--sentinel"]
