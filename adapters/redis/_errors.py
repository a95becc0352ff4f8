"""What the client's errors mean for a fenced write. The one place where they are translated."""

from __future__ import annotations

try:
    from redis.exceptions import (
        AskError,
        AuthenticationError,
        AuthorizationError,
        BusyLoadingError,
        ClusterCrossSlotError,
        ClusterDownError,
        ConnectionError,
        InvalidResponse,
        NoPermissionError,
        NoScriptError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisError,
        ResponseError,
        TimeoutError,
        TryAgainError,
    )
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"adapters.redis needs {exc.name}: pip install 'fencing-toolkit[redis]'", name=exc.name
    ) from exc

from fencing.errors import ContentionError, FencingError, OutcomeUnknownError

LOST = (ConnectionError, TimeoutError, InvalidResponse, OSError)
"""What the client raises when a connection cannot be had or is lost."""


class ServerRefusedError(FencingError):
    """The server takes no writes now: a read-only replica, out of memory, a failed save, no permission.

    Nothing was written, and nothing is said of the token: the same one may write once the server's operator has acted.
    """


# By class and by the first word of the message (the client has classes for some codes only). All of these are said
# before the first recorded command: of what comes after it, the script gives account itself.
_MOVING = "is moving the slot"
_CLUSTER_DOWN = "says that its cluster, or its link to the primary, is down"
_ANOTHER_NODE = "is a node of a cluster that does not serve this key: use a cluster client"
_SEVERAL_SLOTS = "is a cluster and the keys lie in several slots: build them with redis_key(resource, name)"
_PASSING: dict[type[Exception], str] = {
    BusyLoadingError: "is still loading its data",
    TryAgainError: _MOVING,
    ClusterDownError: _CLUSTER_DOWN,
}
_PASSING_CODES = {
    "TRYAGAIN": _MOVING,  # redis-py 5 has classes for these in its cluster client only
    "CLUSTERDOWN": _CLUSTER_DOWN,
    "BUSY": "is busy with a script of somebody else's",
    "NOREPLICAS": "has too few replicas for min-replicas-to-write",
}
_DENIED = (
    "denies this user a command or key: allow EVALSHA, SCRIPT LOAD, TIME, EXISTS, UNLINK, the hash commands, "
    "keys fencing:* and the data's"
)
_LASTING: dict[type[Exception], str] = {
    ReadOnlyError: "is a read-only replica: connect to the primary",
    OutOfMemoryError: "is out of memory (maxmemory): free some or raise the limit",
    NoPermissionError: _DENIED,
    AuthenticationError: "asks for credentials or does not accept them",
    AuthorizationError: "does not accept the credentials",
    AskError: _ANOTHER_NODE,  # and MovedError, which is one to the client
    ClusterCrossSlotError: _SEVERAL_SLOTS,
    NoScriptError: "forgot the script at once, twice: something flushes its script cache all the time",
}
_LASTING_CODES = {
    "MOVED": _ANOTHER_NODE,
    "ASK": _ANOTHER_NODE,
    "CROSSSLOT": _SEVERAL_SLOTS,
    "MISCONF": "refuses writes because its last save to disk failed: see its log",
    "NOAUTH": "asks for credentials",
    "WRONGTYPE": "has something else than a mark under the key of a mark: remove that key, then raise the fence",
}
# What has no code of its own: a denial inside the script, as Valkey and as Redis put it, and a server before 7.0.
_LASTING_TEXTS = {
    "ACL failure in script": _DENIED,
    "The user executing the script can't": _DENIED,
    "unexpected symbol near '#'": "is too old: fenced writes need Redis 7.0 or Valkey 7.2",
}


def nothing_done(exc: Exception, downstream: str) -> FencingError | None:
    """The error to raise for an answer by which the server says that it did nothing; ``None`` if it does not say so."""
    code = str(exc).partition(" ")[0]
    for kind, classes, codes in (
        (ContentionError, _PASSING, _PASSING_CODES),
        (ServerRefusedError, _LASTING, _LASTING_CODES),
    ):
        found = next((text for error, text in classes.items() if isinstance(exc, error)), None)
        found = found or (codes.get(code) if isinstance(exc, ResponseError) else None)
        if found:
            return kind(f"{downstream} {found}; nothing was written ({exc})", downstream=downstream)
    for text, reason in _LASTING_TEXTS.items():
        if isinstance(exc, ResponseError) and text in str(exc):
            return ServerRefusedError(f"{downstream} {reason}; nothing was written ({exc})", downstream=downstream)
    return None


def unreachable(exc: BaseException, downstream: str) -> FencingError:
    """The error for a connection that could not be had, so that nothing was sent."""
    if isinstance(exc, RedisError) and (said := nothing_done(exc, downstream)):
        return said
    return ContentionError(
        f"{downstream} could not be reached; nothing was sent, so nothing was written ({exc})", downstream=downstream
    )


def unknown(why: str, downstream: str) -> OutcomeUnknownError:
    """The error for a write of which nobody can say whether it was applied."""
    return OutcomeUnknownError(
        f"{downstream}: {why}: the write may or may not have been applied; look at the data before doing it again",
        downstream=downstream,
    )
