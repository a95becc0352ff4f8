"""What in a server's set-up would break a promise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

from redis.exceptions import ResponseError

from adapters.redis._dialogue import Dialogue
from adapters.redis._durability import Durability
from adapters.redis._keys import MARK_PATTERN, resource_of
from adapters.redis._reading import asking
from fencing import Finding
from fencing.errors import FencingError

_OLDEST = (7, 0)
_CLOCK_LIMIT = 5.0
"""Seconds by which two clocks may differ without being worth a word."""
_LOOKED_AT = 500
_PAGES = 20


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
    found = [*judge(facts, downstream, on_missing, durability), *forbidden]
    if facts.get("role") != "slave":
        for command, ask in (("TIME", _clock), ("SCAN, PTTL, TYPE", _keys)):
            try:
                found.append((yield from ask(downstream)))
            except FencingError as exc:
                if not isinstance(exc.__cause__, ResponseError):
                    raise
                found.append(_unreadable(downstream, command, exc))
    return found


def _clock(downstream: str) -> Dialogue[Finding]:
    """Compare the server's clock with this machine's. No verdict looks at either: marks are dated by it, for people."""
    before = time.time()
    seconds, micros = yield from asking(("TIME",), downstream)
    after = time.time()
    ahead = int(seconds) + int(micros) / 1e6 - (before + after) / 2
    if abs(ahead) <= _CLOCK_LIMIT + (after - before) / 2:
        return _finding(
            "clock", "ok", downstream, f"the server's clock and this machine's differ by {abs(ahead):.1f} s"
        )
    return _finding(
        "clock",
        "warning",
        downstream,
        f"the server's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's",
        "no verdict depends on it; but when a mark was set, and how late a refused write came, is told wrong",
        "synchronise both clocks (NTP)",
    )


def _keys(downstream: str) -> Dialogue[Finding]:
    """Look at marks, up to a limit: none may go by itself, and nothing else may lie where marks do."""
    cursor, seen, passing, foreign = b"0", 0, [], []
    for _ in range(_PAGES):
        cursor, keys = yield from asking(("SCAN", cursor.decode(), "MATCH", MARK_PATTERN, "COUNT", "1000"), downstream)
        for key in keys:
            name = key.decode("utf-8", "replace")
            if resource_of(name) is None:
                continue
            seen += 1
            if (yield from asking(("PTTL", name), downstream)) >= 0:
                passing.append(name)
            elif (yield from asking(("TYPE", name), downstream)) not in (b"hash", "hash"):
                foreign.append(name)
        if cursor == b"0" or seen >= _LOOKED_AT:
            break
    if passing or foreign:
        return _finding(
            "keys",
            "broken",
            downstream,
            f"of {seen} marks {len(passing)} have a time to live, {len(foreign)} are something else: "
            f"{', '.join((passing + foreign)[:3])}",
            "a mark that goes by itself lets its next writer begin anew, or be refused; what is no mark refuses all",
            "find who sets EXPIRE or writes there; PERSIST the marks, remove the rest and raise their fences",
        )
    return _finding("keys", "ok", downstream, f"{seen} marks looked at: all are kept for ever")


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
        "what it would tell of eviction, replication, persistence or marks is not known: lost marks are not foreseen",
        f"allow the user {command}, or look at the server by hand",
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
