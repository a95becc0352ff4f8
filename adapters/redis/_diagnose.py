"""What in a server's set-up would break a promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from redis.exceptions import ResponseError

from adapters.redis._dialogue import Dialogue
from adapters.redis._durability import Durability
from adapters.redis._reading import asking
from fencing import Finding
from fencing.errors import FencingError

_OLDEST = (7, 0)


def diagnosing(downstream: str, on_missing: str, durability: Durability) -> Dialogue[list[Finding]]:
    """Ask the server about itself, and judge."""
    facts: dict[str, str] = {}
    for section in ("server", "memory", "persistence", "replication"):
        try:
            text = yield from asking(("INFO", section), downstream)
        except FencingError as exc:
            if not isinstance(exc.__cause__, ResponseError):
                raise
            return [_unreadable(downstream, "INFO", exc)]
        facts.update(line.split(":", 1) for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
    try:
        # A list in RESP2, a mapping in RESP3.
        answer: Any = yield from asking(("CONFIG", "GET", "appendfsync"), downstream)
        pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
        facts.update((name.decode(), value.decode()) for name, value in pairs)
        forbidden = []
    except FencingError as exc:
        if not isinstance(exc.__cause__, ResponseError):
            raise
        forbidden = [_unreadable(downstream, "CONFIG GET", exc)]
    return [*judge(facts, downstream, on_missing, durability), *forbidden]


def judge(facts: dict[str, str], where: str, on_missing: str, durability: Durability) -> Iterator[Finding]:
    """Say what the facts (fields of ``INFO``, and ``appendfsync``) mean for the promises."""
    yield _version(facts, where)
    yield _eviction(facts, where, on_missing)
    yield from _replication(facts, where, durability)
    yield _persistence(facts, where)


def _finding(
    check: str,
    severity: Literal["ok", "warning", "broken"],
    where: str,
    message: str,
    breaks: str = "",
    remedy: str = "",
) -> Finding:
    return Finding(f"redis-{check}", severity, where, message, breaks, remedy)


def _unreadable(where: str, command: str, exc: FencingError) -> Finding:
    return _finding(
        "access",
        "warning",
        where,
        f"{command} is not allowed: {exc}",
        "what it would tell of eviction, replication and persistence is not known, so lost marks are not foreseen",
        f"allow the user {command}, or look at the server's settings by hand",
    )


def _version(facts: dict[str, str], where: str) -> Finding:
    found = facts.get("redis_version", "")
    name = (
        f"Valkey {facts['valkey_version']}" if "valkey_version" in facts else f"Redis {found or 'of unknown version'}"
    )
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers and numbers < _OLDEST:
        return _finding(
            "version",
            "broken",
            where,
            f"{name} is too old",
            "it cannot run the script, so every fenced write is refused",
            "upgrade to Redis 7.0, Valkey 7.2 or newer",
        )
    return _finding("version", "ok", where, name)


def _eviction(facts: dict[str, str], where: str, on_missing: str) -> Finding:
    policy, limit = facts.get("maxmemory_policy", ""), facts.get("maxmemory", "0")
    if not policy.startswith("allkeys") or limit == "0":
        return _finding(
            "eviction", "ok", where, f"maxmemory-policy {policy or 'unknown'}, maxmemory {limit}: marks are not evicted"
        )
    return _finding(
        "eviction",
        "warning",
        where,
        f"maxmemory-policy {policy} with maxmemory {limit} evicts marks",
        "a write to a resource whose mark was evicted is refused until the fence is raised again"
        + (', and on_missing="create" makes no mark here' if on_missing == "create" else ""),
        "set maxmemory-policy noeviction or volatile-*, or keep the fenced data on a server of its own",
    )


def _replication(facts: dict[str, str], where: str, durability: Durability) -> Iterator[Finding]:
    if facts.get("role") == "slave":
        yield _finding(
            "role",
            "broken",
            where,
            "this is a replica",
            "it takes no writes, and what it answers about marks may be old",
            "connect to the primary",
        )
        return
    replicas = int(facts.get("connected_slaves", "0"))
    wanted = durability.replicas
    if wanted > replicas:
        yield _finding(
            "replication",
            "broken",
            where,
            f"durability waits for {wanted} replicas, {replicas} are connected",
            "every write ends as unknown",
            "connect the replicas, or wait for fewer",
        )
    elif wanted < replicas:
        yield _finding(
            "replication",
            "warning",
            where,
            f"{replicas} replicas are connected, durability waits for {wanted}",
            "a replica that is promoted without the newest mark accepts an older token",
            f'use durability="wait:{replicas}:MS", or promote only replicas that were waited for',
        )
    else:
        yield _finding("replication", "ok", where, f"{replicas} replicas connected, durability waits for {wanted}")


def _persistence(facts: dict[str, str], where: str) -> Finding:
    appends, fsync = facts.get("aof_enabled") == "1", facts.get("appendfsync")
    if appends and fsync == "always":
        return _finding("persistence", "ok", where, "append-only file, synced at every write")
    state = f"append-only file, appendfsync {fsync or 'unknown'}" if appends else "no append-only file"
    return _finding(
        "persistence",
        "warning",
        where,
        state,
        "after a crash the newest marks may be missing, and an older token is accepted where an older mark came back",
        "set appendonly yes and appendfsync always, or raise the fences again (fences=, raise_fence) after a crash",
    )
