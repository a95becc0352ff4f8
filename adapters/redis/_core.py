"""Every decision of the guard, without a socket: what is sent, what an answer means, what is sent again.

A *dialogue* is a generator: it yields requests, and a driver (``_drive``) with a connection, blocking or asyncio, sends
back the answers and throws in the client's errors. So both kinds of client run the same code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from adapters.redis._durability import Durability
from adapters.redis._errors import LOST, nothing_done, unknown, unreachable
from adapters.redis._keys import mark_key
from adapters.redis._recorder import Tape
from adapters.redis._wire import number, packed, word
from fencing._law import Mark, Verdict, reject
from fencing._token import Token
from fencing.errors import ContentionError, EffectError, FencingError, MarkMissingError

T = TypeVar("T")

Command: TypeAlias = bytes
Pause: TypeAlias = float
Request: TypeAlias = Command | Pause | None
"""A command to send, and have its answer; seconds to wait; or ``None``: have a connection, return its protocol (2, 3).

What a driver throws in at ``None`` happened before anything was sent. It keeps the connection until that is lost or the
dialogue ends."""

Dialogue: TypeAlias = Generator[Request, Any, T]
OnMissing: TypeAlias = Literal["reject", "create", "raise"]

SCRIPT: Final = files(__package__).joinpath("write.lua").read_text(encoding="utf-8")
_SHA: Final = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
_EVALSHA: Final = word(b"EVALSHA") + word(_SHA.encode())
_SCRIPT_WORDS: Final = 12  # EVALSHA, the script, the number of keys, and ARGV 1 to 9

# Before each sending of the same write, in seconds. A lost reply is asked for at most this often, so that a call ends.
_PAUSES: Final = (0.0, 0.0, 0.1)

# How often a write may be told that the mark has moved on by more than its ring since this process last saw it.
_CATCH_UPS: Final = 10

_SEEN_LIMIT: Final = 4096

_VERDICTS: Final = {
    b"missing": Verdict.MARK_MISSING,
    b"stale": Verdict.STALE,
    b"issuer": Verdict.ISSUER_MISMATCH,
    b"lineage": Verdict.LINEAGE_CONFLICT,
}
_MARK_FIELDS: Final = ("issuer", "lineage", "value", "holder", "at")


class Seen:
    """How many writes each mark had counted under a token when last looked at.

    A lower bound, by which the script tells a write that it never executed from one that it has forgotten.
    """

    def __init__(self) -> None:
        self._writes: dict[str, tuple[Token, int]] = {}

    def get(self, key: str, token: Token) -> int:
        """The last count, or 0."""
        known = self._writes.get(key)
        return known[1] if known and known[0] == token else 0

    def put(self, key: str, token: Token, writes: int) -> None:
        """Remember a count. Forgetting is harmless: it costs one question to the server."""
        if len(self._writes) >= _SEEN_LIMIT:
            self._writes.clear()
        self._writes[key] = (token, writes)


@dataclass(frozen=True, slots=True)
class Write:
    """One call: whose token is shown to which resources, and what is executed if it is accepted (no tape: nothing)."""

    resources: tuple[str, ...]
    token: Token
    holder: str
    on_missing: OnMissing
    tape: Tape | None
    durability: Durability
    downstream: str
    seen: Seen
    id: bytes = field(default_factory=lambda: os.urandom(16))

    def dialogue(self) -> Dialogue[None]:
        """Show the token, execute the commands, wait for replicas; settle the tape. Raises what refused or failed."""
        maybe_applied: BaseException | None = None
        for pause in _PAUSES:
            again = maybe_applied is not None
            try:
                if pause:
                    yield pause
                protocol = yield None
            except LOST as exc:
                if not again:
                    raise unreachable(exc, self.downstream) from exc
                continue
            try:
                answer = yield from self._ask(protocol, again)
            except (*LOST, ResponseError) as exc:
                said = nothing_done(exc, self.downstream)
                if not again and said:
                    raise said from exc
                if isinstance(exc, ResponseError) and said is None:
                    raise unknown(f"the script failed ({exc})", self.downstream) from exc
                maybe_applied = maybe_applied or exc
                continue
            self._interpret(answer, again)
            try:
                yield from self._wait_for_replicas()
            except LOST as exc:
                maybe_applied = exc
                continue
            if self.tape is not None and self.tape.error is not None:
                raise self.tape.error
            return
        raise unknown(f"the reply was lost ({maybe_applied})", self.downstream) from maybe_applied

    def _ask(self, protocol: int, again: bool) -> Dialogue[list[Any]]:
        """Run the script, loading it if the server does not have it, until its answer is about this write."""
        tape = self.tape if self._is_remembered else None
        # Whether a mark that is missing at a later sending was there at the first one, nobody knows.
        on_missing = "reject" if again and tape else self.on_missing
        marks = [mark_key(resource) for resource in self.resources]
        head = [
            _EVALSHA,
            number(len(marks) + (len(tape.keys) if tape else 0)),
            *(word(mark.encode()) for mark in marks),
            *(tape.keys if tape else ()),
            number(len(marks)),
            _shown(self.token, self.holder, on_missing),
            word(self.id if tape else b""),
        ]
        size = b"*%d\r\n" % (_SCRIPT_WORDS + len(marks) + (len(tape.keys) + tape.size if tape else 0))
        seen = self.seen.get(marks[0], self.token)
        for _ in range(_CATCH_UPS):
            command = b"".join((size, *head, number(seen), number(protocol), *(tape.words if tape else ())))
            try:
                answer: list[Any] = yield command
            except NoScriptError:
                yield packed("SCRIPT", "LOAD", SCRIPT)
                answer = yield command
            if answer[0] != b"again":
                break
            seen = answer[1]
            if again:
                raise unknown("the reply was lost and the write's id is no longer kept", self.downstream)
        else:
            raise ContentionError(
                f"{self.downstream}: {self.resources[0]!r} is written to so fast that this write cannot be told "
                "from an older one; nothing was written",
                resource=self.resources[0],
                presented=self.token,
                downstream=self.downstream,
            )
        if tape:
            self.seen.put(marks[0], self.token, answer[0] if isinstance(answer[0], int) else seen)
        return answer

    @property
    def _is_remembered(self) -> bool:
        """Whether executing it twice would differ from executing it once."""
        return self.tape is not None and len(self.tape) > 0

    def _interpret(self, answer: list[Any], again: bool) -> None:
        if answer[0] == b"applied":
            answer = answer[2] if len(answer) > 2 else [None]
        verdict = answer[0]
        if verdict is None or verdict == b"failed" or isinstance(verdict, int):
            if self.tape is not None:
                self._settle(self.tape, answer)
            return
        if again and self._is_remembered:
            raise unknown(
                f"the reply was lost, and asked again the server answered {verdict.decode()!r}, as it would either way",
                self.downstream,
            )
        resource = self.resources[answer[1]]
        if verdict == b"evictable":
            raise MarkMissingError(
                f"{self.downstream} has no mark of {resource!r} and evicts keys that have no time to live "
                '(maxmemory-policy allkeys-*), so on_missing="create" cannot tell a first write from a lost mark; '
                "nothing was written. Set maxmemory-policy noeviction or volatile-*, or raise the fence first "
                "(fences=, raise_fence)",
                resource=resource,
                presented=self.token,
                downstream=self.downstream,
            )
        reject(_VERDICTS[verdict], resource, self.token, as_mark(answer[2:7]), self.downstream)

    def _settle(self, tape: Tape, answer: list[Any]) -> None:
        if answer[0] != b"failed":
            tape.settle(None if answer[0] is None else answer[1:])
            return
        failed, message = answer[2], answer[3]
        error = EffectError(
            f"{self.downstream}: command {failed} ({tape.name_of(failed)}) of the fenced write to "
            f"{', '.join(map(repr, self.resources))} failed: {message.decode('utf-8', 'replace')}; "
            "the commands before it remain, those after it were not executed",
            index=failed,
            resource=self.resources[0],
            presented=self.token,
            downstream=self.downstream,
        )
        tape.settle(answer[4:], error)

    def _wait_for_replicas(self) -> Dialogue[None]:
        wanted, limit = self.durability.replicas, self.durability.milliseconds
        if not wanted:
            return
        try:
            acknowledged = yield packed("WAIT", wanted, limit)
        except ResponseError as exc:
            raise unknown(f"applied here, but WAIT failed ({exc})", self.downstream) from exc
        if acknowledged < wanted:
            raise unknown(
                f"applied here, but acknowledged by {acknowledged} of {wanted} replicas within {limit} ms, so that a "
                "failover may lose it",
                self.downstream,
            )


@lru_cache(maxsize=256)
def _shown(token: Token, holder: str, on_missing: OnMissing) -> bytes:
    shown = (
        token.issuer.encode(),
        token.lineage.encode(),
        b"%d" % token.value,
        holder.encode("utf-8", "backslashreplace"),
    )
    return b"".join(map(word, (*shown, on_missing.encode())))


def as_mark(fields: Sequence[bytes | None]) -> Mark | None:
    """The mark that a hash holds; ``None`` if there is none."""
    issuer, lineage, value, holder, at = fields if len(fields) == 5 else (None,) * 5
    if issuer is None or lineage is None or value is None:
        return None
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(at)) if at else None
    return Mark(
        Token(int(value), issuer.decode(), lineage.decode()), (holder or b"").decode("utf-8", "replace"), moment
    )


def reading(resource: str, downstream: str) -> Dialogue[Mark | None]:
    """Read a mark. A lost reply is asked for again: reading changes nothing."""
    fields = yield from asking(("HMGET", mark_key(resource), *_MARK_FIELDS), downstream)
    return as_mark(fields)


def asking(words: tuple[str, ...], downstream: str) -> Dialogue[Any]:
    """Send a command that only reads, again if its reply is lost. Raises translated errors."""
    lost: BaseException | None = None
    for pause in _PAUSES:
        try:
            if pause:
                yield pause
            yield None
            return (yield packed(*words))
        except LOST as exc:
            lost = exc
        except ResponseError as exc:
            said = nothing_done(exc, downstream)
            raise (
                said or FencingError(f"{downstream} answered {words[0]} with: {exc}", downstream=downstream)
            ) from exc
    assert lost is not None
    raise unreachable(lost, downstream) from lost
