"""What a guard reads off a client of redis-py, which it never changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from redis.connection import Connection

from adapters.redis._keys import mark_key
from adapters.redis._places import slot_of


def is_cluster(client: Any) -> bool:
    """Whether it is a client of a cluster."""
    return hasattr(client, "nodes_manager")


def name_of(client: Any) -> str:
    """``redis:host:port/db``: which server, without user or password. Of a cluster one node that it was given."""
    if is_cluster(client):
        nodes = client.nodes_manager.startup_nodes
        return f"redis:cluster:{min(nodes, default='?')}"
    kwargs = client.connection_pool.connection_kwargs
    if "path" in kwargs:
        place = kwargs["path"]
    elif hasattr(client.connection_pool, "service_name"):
        place = f"sentinel:{client.connection_pool.service_name}"
    else:
        place = f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    return f"redis:{place}/{kwargs.get('db') or 0}"


def socket_timeout(client: Any) -> float | None:
    """Seconds that a connection waits for an answer; ``None``: for ever."""
    kwargs = client.nodes_manager.connection_kwargs if is_cluster(client) else client.connection_pool.connection_kwargs
    if "socket_timeout" in kwargs:
        given: float | None = kwargs["socket_timeout"]
        return given
    # The default is None, until redis-py 8 made it 5 s.
    kind: Any = Connection if is_cluster(client) else client.connection_pool.connection_class
    signatures = (inspect.signature(base.__init__).parameters for base in kind.__mro__)
    return next((found["socket_timeout"].default for found in signatures if "socket_timeout" in found), None)


def encoder_of(client: Any) -> Any:
    """How the client turns arguments to bytes, and bytes to text."""
    return client.encoder if is_cluster(client) else client.connection_pool.get_encoder()


def callbacks_of(client: Any) -> Mapping[str, Callable[..., Any]]:
    """What the client makes of the replies of each command."""
    if hasattr(client, "response_callbacks"):
        found: Mapping[str, Callable[..., Any]] = client.response_callbacks
        return found
    node: Mapping[str, Callable[..., Any]] = client.get_redis_connection(client.get_default_node()).response_callbacks
    return {**node, **client.cluster_response_callbacks}


def one_slot(resources: tuple[str, ...]) -> int:
    """The slot of the resources' marks. Raises ``ValueError`` where they lie in several: no step reaches them all."""
    slot = slot_of(mark_key(resources[0]))
    other = next((name for name in resources if slot_of(mark_key(name)) != slot), None)
    if other is not None:
        raise ValueError(
            f"the marks of {resources[0]!r} and {other!r} lie in two slots of the cluster, and no single step reaches "
            "both: give their names one hash tag ('{shop-3}/cart/7', '{shop-3}/stock/9')"
        )
    return slot
