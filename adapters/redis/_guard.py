"""The guard over a Redis or Valkey client, blocking or asyncio."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, overload

import redis
import redis.asyncio
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.asyncio.cluster import ClusterPipeline as AsyncClusterPipeline
from redis.client import Pipeline
from redis.cluster import ClusterPipeline

from adapters.redis._client import callbacks_of, encoder_of, is_cluster, name_of, one_slot, socket_timeout
from adapters.redis._core import Terms, Write
from adapters.redis._diagnose import diagnosing
from adapters.redis._dialogue import Dialogue
from adapters.redis._drive import drive, drive_async, drive_write
from adapters.redis._durability import Durability
from adapters.redis._explaining import explaining, listing, page_of
from adapters.redis._places import AsyncNode, Node
from adapters.redis._reading import reading
from adapters.redis._recorder import Recorder, Tape
from adapters.redis._script import Frames
from adapters.redis._writers import Writers
from fencing import Explanation, Finding, Mark, Token
from fencing._law import OnMissing, check_resources


class RedisGuard:
    """A guard over a ``Redis`` or ``RedisCluster``, blocking or asyncio: pass it to ``fenced_write()`` in its place.

    In a cluster everything that one write touches must lie in one slot: name the data with :func:`redis_key`, and
    several resources of one write with a hash tag (``"{shop-3}/cart/7"``); else a ``ValueError`` names what does not.

    ``on_missing``: what a write to a resource without a mark means. ``"reject"`` (the default): the mark was lost,
    and the write is refused with :class:`~fencing.errors.MarkMissingError`; only ``raise_fence`` and a job's
    ``fences=`` make marks. ``"create"``: it is the first write and makes the mark; refused on a server that evicts
    keys without a time to live.

    ``durability``: ``"none"``, the primary's word is enough; or ``"wait:N:MS"``: at least N replicas must have the
    write within MS milliseconds (``WAIT`` on the connection that wrote), else
    :class:`~fencing.errors.OutcomeUnknownError`. Name as many replicas as may be promoted: a mark that a failover
    loses lets an older token in.

    The client itself is not changed. Raises ``TypeError`` for what is not such a client and ``ValueError`` for an
    unknown option. Needs Redis 7.0 or Valkey 7.2.
    """

    @overload
    def __new__(
        cls, client: redis.Redis | redis.RedisCluster, on_missing: OnMissing = ..., durability: str = ...
    ) -> SyncRedisGuard: ...
    @overload
    def __new__(
        cls,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        on_missing: OnMissing = ...,
        durability: str = ...,
    ) -> AsyncRedisGuard: ...
    def __new__(cls, client: Any, on_missing: OnMissing = "reject", durability: str = "none") -> RedisGuard:
        """Pick the guard for the kind of client."""
        kind: type[RedisGuard]
        if isinstance(client, Pipeline | AsyncPipeline | ClusterPipeline | AsyncClusterPipeline):
            raise TypeError("a pipeline cannot be fenced: pass the client, and record the commands in the block")
        if isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster):
            kind = AsyncRedisGuard
        elif isinstance(client, redis.Redis | redis.RedisCluster):
            kind = SyncRedisGuard
        else:
            raise TypeError(
                f"no guard knows how to fence a {type(client).__module__}.{type(client).__qualname__}: "
                "pass a Redis or a RedisCluster of redis or redis.asyncio"
            )
        if not issubclass(kind, cls) and not issubclass(cls, kind):
            raise TypeError(
                f"{cls.__name__} does not go with this kind of client: use RedisGuard, which picks {kind.__name__}"
            )
        return object.__new__(kind if issubclass(kind, cls) else cls)

    _node: type[Node] | type[AsyncNode]

    def __init__(self, client: Any, on_missing: OnMissing = "reject", durability: str = "none") -> None:
        if on_missing not in ("reject", "create"):
            raise ValueError(f'on_missing is "reject" or "create", not {on_missing!r}')
        self._client = client  # a client that is gone closes its pool
        self._pool = None if is_cluster(client) else client.connection_pool
        self._callbacks = callbacks_of(client)
        self._encoder = encoder_of(client)
        self._on_missing = on_missing
        self.downstream = name_of(client)
        promised = Durability.parse(durability, socket_timeout(client))
        self._terms = Terms(self.downstream, promised, Writers(), Frames())

    def _place(self, resources: tuple[str, ...]) -> Any:
        """Where the connection for these resources is to be had."""
        return self._pool if self._pool is not None else self._node(self._client, one_slot(resources))

    def _tape(self, resources: tuple[str, ...]) -> Tape:
        return Tape(
            self._encoder, self._callbacks, None if self._pool is not None else (one_slot(resources), resources[0])
        )

    def _raising(self, resources: tuple[str, ...], token: Token, holder: str) -> Dialogue[None]:
        return Write(self._terms, resources, token, holder, "raise", None).dialogue()

    def _adopting(self, resource: str, token: Token, reason: str, actor: str) -> Dialogue[None]:
        for name, text in (("reason", reason), ("actor", actor)):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"{name}= says {'why' if name == 'reason' else 'who'}, and is kept; it is {text!r}")
        act = " ".join(f"{actor}: {reason}".split())
        return Write(self._terms, check_resources((resource,)), token, actor, "adopt", None, act).dialogue()


class SyncRedisGuard(RedisGuard):
    """What :class:`RedisGuard` makes of a ``redis.Redis`` or ``redis.RedisCluster``."""

    _node = Node

    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> AbstractContextManager[Recorder]:
        """Yield a recorder. When the block ends without an error, check the token and execute the commands at once."""
        return _Block(self, resources, token, holder)

    def raise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """Raise the marks, making those that are missing."""
        drive(self._place(resources), self._raising(resources, token, holder))

    def read_mark(self, resource: str) -> Mark | None:
        """Return the resource's mark; its time is the server's, of when the token was first seen."""
        return drive(self._place((resource,)), reading(resource, self.downstream))

    def explain(self, resource: str) -> Explanation:
        """Say who holds the resource, since when, and whom its mark refused last (eight are kept with the mark)."""
        return drive(self._place((resource,)), explaining(resource, self.downstream))

    def list_marks(self, prefix: str = "", limit: int = 1000) -> list[tuple[str, Mark]]:
        """List marks by the resource's name. Reads every key of the server once (``SCAN``)."""
        found: dict[str, Mark] = {}
        for where, place in self._primaries():
            found |= drive(place, listing(prefix, where))
        return page_of(found, limit)

    def adopt(self, resource: str, token: Token, *, reason: str, actor: str) -> None:
        """Move a resource to another issuer: its mark becomes ``token``, whichever issuer it had.

        Stop the writers of the old issuer first: the two counters have no order, so nothing tells a late one. Who did
        it, why, and the old token stay with the mark. Raises as ``raise_fence`` where the issuer is the same, or had
        the resource before under a newer token.
        """
        drive(self._place((resource,)), self._adopting(resource, token, reason, actor))

    def diagnose(self) -> list[Finding]:
        """Look at version, role, eviction, replication and persistence of the server."""
        found: list[Finding] = []
        for where, place in self._primaries():
            found += drive(place, diagnosing(where, self._on_missing, self._terms.durability))
        return found

    def _primaries(self) -> list[tuple[str, Any]]:
        if self._pool is not None:
            return [(self.downstream, self._pool)]
        nodes = self._client.get_primaries()
        return [(f"{self.downstream} node {node.name}", Node(self._client, 0, node.name)) for node in nodes]


class _Block:
    """The ``with`` block of one write. A class, not a generator: it is on every write's way."""

    __slots__ = ("_guard", "_holder", "_resources", "_tape", "_token")

    def __init__(self, guard: SyncRedisGuard, resources: tuple[str, ...], token: Token, holder: str) -> None:
        self._guard = guard
        self._resources = resources
        self._token = token
        self._holder = holder
        self._tape = guard._tape(resources)

    def __enter__(self) -> Recorder:
        return Recorder(self._tape)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tape, guard = self._tape, self._guard
        if error is not None:
            tape.abandon(error)
            return
        try:
            tape.seal()
            write = Write(guard._terms, self._resources, self._token, self._holder, guard._on_missing, tape)
            if guard._pool is not None:
                drive_write(guard._pool, write)
            else:
                drive(guard._place(self._resources), write.dialogue())
        except BaseException as exc:
            tape.abandon(exc)
            raise


class AsyncRedisGuard(RedisGuard):
    """What :class:`RedisGuard` makes of a ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``."""

    _node = AsyncNode

    @asynccontextmanager
    async def aopen(self, resources: tuple[str, ...], token: Token, holder: str) -> AsyncIterator[Recorder]:
        """As :meth:`SyncRedisGuard.open`."""
        tape = self._tape(resources)
        try:
            yield Recorder(tape)
            tape.seal()
            write = Write(self._terms, resources, token, holder, self._on_missing, tape)
            await drive_async(self._place(resources), write.dialogue())
        except BaseException as exc:
            tape.abandon(exc)
            raise

    async def araise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """As :meth:`SyncRedisGuard.raise_fence`."""
        await drive_async(self._place(resources), self._raising(resources, token, holder))

    async def aread_mark(self, resource: str) -> Mark | None:
        """As :meth:`SyncRedisGuard.read_mark`."""
        return await drive_async(self._place((resource,)), reading(resource, self.downstream))

    async def aexplain(self, resource: str) -> Explanation:
        """As :meth:`SyncRedisGuard.explain`."""
        return await drive_async(self._place((resource,)), explaining(resource, self.downstream))

    async def alist_marks(self, prefix: str = "", limit: int = 1000) -> list[tuple[str, Mark]]:
        """As :meth:`SyncRedisGuard.list_marks`."""
        found: dict[str, Mark] = {}
        for where, place in await self._primaries():
            found |= await drive_async(place, listing(prefix, where))
        return page_of(found, limit)

    async def aadopt(self, resource: str, token: Token, *, reason: str, actor: str) -> None:
        """As :meth:`SyncRedisGuard.adopt`."""
        await drive_async(self._place((resource,)), self._adopting(resource, token, reason, actor))

    async def adiagnose(self) -> list[Finding]:
        """As :meth:`SyncRedisGuard.diagnose`."""
        found: list[Finding] = []
        for where, place in await self._primaries():
            found += await drive_async(place, diagnosing(where, self._on_missing, self._terms.durability))
        return found

    async def _primaries(self) -> list[tuple[str, Any]]:
        if self._pool is not None:
            return [(self.downstream, self._pool)]
        await self._client.initialize()
        nodes = self._client.get_primaries()
        return [(f"{self.downstream} node {node.name}", AsyncNode(self._client, 0, node.name)) for node in nodes]


_guards: weakref.WeakKeyDictionary[Any, RedisGuard] = weakref.WeakKeyDictionary()


def guard_for(target: Any) -> RedisGuard:
    """Return the guard of a client with the default options, the same one each time."""
    guard = _guards.get(target)
    if guard is None:
        guard = RedisGuard(target)
        guard._client = weakref.proxy(target)  # or the client, held by its own entry, would never go
        _guards[target] = guard
    return guard
