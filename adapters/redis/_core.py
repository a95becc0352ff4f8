"""A fenced write as a dialogue: what is sent, what an answer means, what is sent again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import NoScriptError, ResponseError

from adapters.redis._dialogue import PAUSES, Dialogue
from adapters.redis._durability import Durability
from adapters.redis._errors import LOST, nothing_done, unknown, unreachable
from adapters.redis._reading import as_mark, as_moment, no_mark
from adapters.redis._recorder import Tape
from adapters.redis._script import LOAD, Frames, OnMissing, call
from adapters.redis._wire import packed
from adapters.redis._writers import Writer, Writers
from fencing._law import Verdict, reject
from fencing._lease import lease_clock
from fencing._token import Token
from fencing.errors import ContentionError, EffectError, FenceRejected, FencingError, MarkMissingError

# How often a write may meet a mark that has forgotten its writers once more since the question before.
_CATCH_UPS: Final = 10

_TIME: Final = packed("TIME")

_VERDICTS: Final = {
    b"missing": Verdict.MARK_MISSING,
    b"stale": Verdict.STALE,
    b"issuer": Verdict.ISSUER_MISMATCH,
    b"lineage": Verdict.LINEAGE_CONFLICT,
}


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all writes of a guard."""

    downstream: str
    durability: Durability
    writers: Writers
    frames: Frames


def _asking(command: bytes) -> Dialogue[Any]:
    """Run the script, loading it if the server does not have it."""
    try:
        return (yield command)
    except NoScriptError:
        yield LOAD
        return (yield command)


class Write:
    """One call: whose token is shown to which resources, and what is executed if it is accepted (no tape: nothing)."""

    __slots__ = (
        "_act",
        "_again",
        "_command",
        "_generation",
        "_holder",
        "_on_missing",
        "_resources",
        "_sent",
        "_tape",
        "_terms",
        "_token",
        "_writer",
    )

    def __init__(
        self,
        terms: Terms,
        resources: tuple[str, ...],
        token: Token,
        holder: str,
        on_missing: OnMissing,
        tape: Tape | None,
        act: str = "",
    ) -> None:
        self._terms = terms
        self._resources = resources
        self._token = token
        self._holder = holder
        self._on_missing: OnMissing = on_missing
        # Without commands there is nothing that could be executed twice, and nothing to remember.
        self._tape = tape if tape else None
        self._act = act
        self._again = False
        self._command = b""
        self._writer: Writer | None = None

    def begin(self, protocol: int) -> bytes:
        """The call of the script as it is first sent, over a connection of this protocol."""
        writers = self._terms.writers
        if self._tape:
            self._writer = writers.take()
        # As known now. What another thread hears from here on must not be taken for it: a repeated write would pass for
        # a new one under a mark that has forgotten it.
        self._generation = writers.generation(self._resources[0], self._token)
        self._sent = lease_clock()
        self._command = self._call(protocol)
        return self._command

    def end(self) -> None:
        """The write is over, whatever came of it."""
        if self._writer is not None:
            self._terms.writers.give(self._writer)
            self._writer = None

    def is_settled_by(self, answer: Any) -> bool:
        """Whether the answer to the first sending ends the write, as nearly always; else its dialogue goes on."""
        tape = self._tape
        if tape is None or self._terms.durability.replicas:
            return False
        if type(answer) is not list:
            tape.settle((answer,))
        elif answer[0] == 1:
            tape.settle(answer[1:])
        else:
            return False
        self.end()
        return True

    def dialogue(self) -> Dialogue[None]:
        """Show the token, execute the commands, wait for replicas; settle the tape. Raises what refused or failed."""
        try:
            yield from self._send()
        except FencingError as exc:
            exc.asked_again = self._again and isinstance(exc, FenceRejected)
            exc.resource = exc.resource or self._resources[0]
            exc.presented = self._token
            exc.downstream = self._terms.downstream
            raise
        finally:
            self.end()

    def _send(self) -> Dialogue[None]:
        downstream = self._terms.downstream
        maybe_applied: BaseException | None = None
        for pause in PAUSES:
            again = self._again = maybe_applied is not None
            try:
                if pause:
                    yield pause
                protocol = yield None
            except LOST as exc:
                if not again:
                    raise unreachable(exc, downstream) from exc
                continue
            try:
                if again:
                    # To show a token twice does no harm. To take a resource twice may: from who was given it since.
                    timed = self._tape or self._on_missing == "adopt"
                    command = self._call(protocol, (yield from self._when_sent()) if timed else None)
                else:
                    command = self._command or self.begin(protocol)
                answer = yield from _asking(command)
                if type(answer) is list and answer[0] == b"again":
                    if again or self._writer is None:
                        self._hear(answer)
                        raise unknown("the reply was lost, and the mark has forgotten this write", downstream)
                    answer = yield from self._catch_up(answer, protocol, self._writer)
            except (*LOST, ResponseError) as exc:
                said = nothing_done(exc, downstream)
                if not again and said:
                    raise said from exc
                if isinstance(exc, ResponseError) and said is None:
                    raise unknown(f"the script failed ({exc})", downstream) from exc
                maybe_applied = maybe_applied or exc
                continue
            self._interpret(answer, again)
            try:
                yield from self._wait_for_replicas()
            except LOST as exc:
                maybe_applied = exc
                continue
            if self._tape and self._tape.error:
                raise self._tape.error
            return
        raise unknown(f"the reply was lost ({maybe_applied})", downstream) from maybe_applied

    def _when_sent(self) -> Dialogue[int]:
        """A moment before the first sending, by the server's clock, in microseconds since 1970.

        Asked for beforehand: told how long ago it was, the server would count from when that reaches it, which may be
        any time later. By a clock that goes on while the machine sleeps, as the server's does.
        """
        seconds, microseconds = yield _TIME
        return int(seconds) * 1_000_000 + int(microseconds) - math.ceil((lease_clock() - self._sent) * 1e6)

    def _call(self, protocol: int, sent: int | None = None) -> bytes:
        """``sent``: a moment by the server's clock before the write was first sent, if it was."""
        frame = self._terms.frames.of(
            self._resources,
            self._token,
            self._holder,
            # Whether a mark that is missing at a later sending was there at the first one, nobody knows.
            "reject" if sent is not None and self._tape else self._on_missing,
            protocol,
            f"{self._generation}/{sent}" if sent is not None else self._generation,
            self._tape,
        )
        return call(frame, self._writer, self._tape, self._act)

    def _catch_up(self, answer: list[Any], protocol: int, writer: Writer) -> Dialogue[Any]:
        """The mark has forgotten its writers: ask as another one, who knows, until the answer is about the write."""
        for _ in range(_CATCH_UPS):
            self._generation = self._hear(answer)
            writer.renew()
            answer = yield from _asking(self._call(protocol))
            if type(answer) is not list or answer[0] != b"again":
                return answer
        raise ContentionError(
            f"{self._terms.downstream}: {self._resources[0]!r} is written to by so many at once that this write cannot "
            "be told from an older one; nothing was written"
        )

    def _hear(self, answer: list[Any]) -> int:
        generation = int(answer[1])
        self._terms.writers.heard(self._resources[0], self._token, generation)
        return generation

    def _interpret(self, answer: Any, again: bool) -> None:
        if type(answer) is not list:
            answer = [1, answer]
        if answer[0] == b"applied":
            answer = answer[1] if len(answer) > 1 else [None]
        verdict = answer[0]
        if verdict is None or verdict == b"failed" or isinstance(verdict, int):
            if self._tape is not None:
                self._settle(self._tape, answer)
            return
        if verdict == b"unrecorded":
            why = answer[1].decode("utf-8", "replace")
            raise unknown(
                f"the commands were executed, but the mark could not be written ({why})", self._terms.downstream
            )
        if again and self._tape:
            raise unknown(
                f"the reply was lost, and asked again the server answered {verdict.decode()!r}, as it would either way",
                self._terms.downstream,
            )
        resource = self._resources[answer[1]]
        if verdict == b"foreign":
            raise no_mark(resource, "it has no token", self._terms.downstream)
        if verdict == b"evictable":
            raise MarkMissingError(
                f"{self._terms.downstream} has no mark of {resource!r} and evicts keys that have no time to live "
                '(maxmemory-policy allkeys-*), so on_missing="create" cannot tell a first write from a lost mark; '
                "nothing was written. Set maxmemory-policy noeviction or volatile-*, or raise the fence first "
                "(fences=, raise_fence)",
                resource=resource,
            )
        mark = as_mark(resource, answer[2:5], self._terms.downstream) if len(answer) > 2 else None
        late = as_moment(answer[5]) - mark.at if mark and mark.at else None
        reject(_VERDICTS[verdict], resource, self._token, mark, self._terms.downstream, late=late)

    def _settle(self, tape: Tape, answer: list[Any]) -> None:
        if answer[0] != b"failed":
            tape.settle(None if answer[0] is None else answer[1:])
            return
        failed, message, before = answer[1:4]
        error = EffectError(
            f"{self._terms.downstream}: command {failed} ({tape.name_of(failed)}) of the fenced write to "
            f"{', '.join(map(repr, self._resources))} failed: {message.decode('utf-8', 'replace')}; "
            "the commands before it remain, those after it were not executed",
            index=failed,
        )
        tape.settle(None if before is None else before[1:], error)

    def _wait_for_replicas(self) -> Dialogue[None]:
        wanted, limit = self._terms.durability.replicas, self._terms.durability.milliseconds
        if not wanted:
            return
        try:
            acknowledged = yield packed("WAIT", wanted, limit)
        except ResponseError as exc:
            raise unknown(f"applied here, but WAIT failed ({exc})", self._terms.downstream) from exc
        if acknowledged < wanted:
            raise unknown(
                f"applied here, but acknowledged by {acknowledged} of {wanted} replicas within {limit} ms, so that a "
                "failover may lose it",
                self._terms.downstream,
            )
