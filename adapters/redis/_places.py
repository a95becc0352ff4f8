"""Where a dialogue finds its connection: a pool, or the node of a cluster that serves the slot.

A driver asks a place for a connection, gives it back, and in a cluster follows where the server points to. A pool of
the client is a place by itself, which follows nowhere.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from redis.crc import key_slot
from redis.exceptions import AskError, ConnectionError, MovedError, RedisClusterException

from adapters.redis._wire import packed

Redirection: TypeAlias = AskError | MovedError
"""``MOVED`` (which is a kind of ``ASK`` to the client) and ``ASK``: said before anything was done."""

MAX_REDIRECTIONS: Final = 5
"""How often one call is sent elsewhere: a resharding points twice, a cluster in disorder for ever."""

_ASKING: Final = packed("ASKING")


def slot_of(key: str | bytes) -> int:
    """The slot of a key (Redis Cluster specification, "Key distribution model")."""
    return int(key_slot(key.encode() if isinstance(key, str) else key))


class Node:
    """A node of a ``redis.RedisCluster``: the one that serves ``slot``, or the one of the name ``name``."""

    def __init__(self, client: Any, slot: int, name: str | None = None) -> None:
        self._client = client
        self._slot = slot
        self._name = name
        self._pools: dict[int, Any] = {}
        self._stale = False

    def get_connection(self) -> Any:
        """A connection to the node. Raises ``ConnectionError`` also where no node is known for the slot."""
        manager = self._client.nodes_manager
        try:
            if self._stale:
                manager.initialize()
                self._stale = False
            node = manager.get_node(node_name=self._name) if self._name else manager.get_node_from_slot(self._slot)
        except RedisClusterException as exc:
            raise ConnectionError(str(exc)) from exc
        if node is None:
            raise ConnectionError(f"the cluster has no node {self._name} any more")
        return self._take(node)

    def release(self, connection: Any) -> None:
        """Give it back to the pool of its node."""
        self._pools.pop(id(connection)).release(connection)

    def lost(self) -> None:
        """A connection broke: another node may serve the slot now, which is looked up at the next one."""
        self._stale = True

    def follow(self, said: Redirection) -> Any:
        """A connection to where the server points."""
        manager = self._client.nodes_manager
        if isinstance(said, MovedError):
            if hasattr(manager, "move_slot"):
                manager.move_slot(said)
            else:  # redis-py 5
                self._stale = True
            return self.get_connection()
        node = manager.get_node(host=said.host, port=said.port)
        if node is None:
            manager.initialize()
            node = manager.get_node(host=said.host, port=said.port)
        if node is None:
            raise ConnectionError(f"the cluster points to {said.host}:{said.port}, which it does not list")
        connection = self._take(node)
        try:
            connection.send_packed_command([_ASKING])
            connection.read_response()
        except BaseException:
            connection.disconnect()
            self.release(connection)
            raise
        return connection

    def _take(self, node: Any) -> Any:
        pool = self._client.get_redis_connection(node).connection_pool
        connection = pool.get_connection()
        self._pools[id(connection)] = pool
        return connection


class AsyncNode:
    """The same for ``redis.asyncio.RedisCluster``, whose nodes are pools themselves."""

    def __init__(self, client: Any, slot: int, name: str | None = None) -> None:
        self._client = client
        self._slot = slot
        self._name = name
        self._nodes: dict[int, Any] = {}
        self._stale = False

    async def get_connection(self) -> Any:
        """A connection to the node. Raises ``ConnectionError`` also where no node is known for the slot."""
        manager = self._client.nodes_manager
        try:
            await self._client.initialize()
            if self._stale:
                await manager.initialize()
                self._stale = False
            node = manager.get_node(node_name=self._name) if self._name else manager.get_node_from_slot(self._slot)
        except RedisClusterException as exc:
            raise ConnectionError(str(exc)) from exc
        if node is None:
            raise ConnectionError(f"the cluster has no node {self._name} any more")
        return await self._take(node)

    async def release(self, connection: Any) -> None:
        """Give it back to its node."""
        node = self._nodes.pop(id(connection))
        if hasattr(node, "release"):
            node.release(connection)
        else:  # redis-py 5
            node._free.append(connection)

    def lost(self) -> None:
        """As :meth:`Node.lost`."""
        self._stale = True

    async def follow(self, said: Redirection) -> Any:
        """As :meth:`Node.follow`."""
        manager = self._client.nodes_manager
        if isinstance(said, MovedError):
            if hasattr(manager, "move_slot"):
                await manager.move_slot(said)
            else:  # redis-py 5
                self._stale = True
            return await self.get_connection()
        node = manager.get_node(host=said.host, port=said.port)
        if node is None:
            await manager.initialize()
            node = manager.get_node(host=said.host, port=said.port)
        if node is None:
            raise ConnectionError(f"the cluster points to {said.host}:{said.port}, which it does not list")
        connection = await self._take(node)
        try:
            await connection.send_packed_command([_ASKING])
            await connection.read_response()
        except BaseException:
            await connection.disconnect()
            await self.release(connection)
            raise
        return connection

    async def _take(self, node: Any) -> Any:
        connection = node.acquire_connection()
        self._nodes[id(connection)] = node
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect()
            await self.release(connection)
            raise
        return connection
