"""What became of a write: its event in the history, and the note of a refusal."""

from __future__ import annotations

import time
from contextvars import copy_context
from typing import Any

from fencing import history
from fencing._ports import AsyncGuard, Guard, PendingVerdict
from fencing._refusals import note
from fencing._token import Token
from fencing.errors import ContentionError, FenceRejected, OutcomeUnknownError


class recorded:
    """A block that emits one event for the whole of a write, whatever its end. A class: it is on every write's way."""

    __slots__ = ("_began", "_guard", "_holder", "_kind", "_resources", "_token")

    def __init__(
        self,
        kind: history.Kind,
        guard: Guard[Any] | AsyncGuard[Any],
        resources: tuple[str, ...],
        token: Token,
        holder: str,
    ) -> None:
        self._kind: history.Kind = kind
        self._guard = guard
        self._resources = resources
        self._token = token
        self._holder = holder

    def __enter__(self) -> Any:
        self._began = time.monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None or history.recording():
            record(self._kind, self._guard, self._resources, self._token, self._holder, self._began, error)

    def record_late(self, verdict: PendingVerdict, error: BaseException | None) -> None:
        """Record the write once its verdict is known; ``error``: what ended the block."""
        context = copy_context()
        verdict.then(lambda refused: context.run(recorded.__exit__, self, None, refused or error, None))


def record(
    kind: history.Kind,
    guard: Guard[Any] | AsyncGuard[Any],
    resources: tuple[str, ...],
    token: Token,
    holder: str,
    began: int,
    error: BaseException | None,
) -> None:
    """Note a refusal, and emit the event of a write that began at ``began`` and ended, with ``error`` or well."""
    if isinstance(error, FenceRejected):
        note(error, resources, token, holder, guard.downstream)
    if history.recording():
        outcome: history.Outcome = "accepted" if error is None else _outcome_of(error)
        name = "" if error is None else type(error).__name__
        history.emit(
            history.Event(
                kind,
                outcome,
                holder,
                guard.downstream,
                resources,
                str(token),
                name,
                "asked again" if getattr(error, "asked_again", False) else "",
                pending=outcome == "accepted" and getattr(guard, "in_callers_transaction", False),
                effects=history.named_effects(),
                began=began,
                refusing=(getattr(error, "resource", None) or "")
                if outcome == "refused" and len(resources) > 1
                else "",
            )
        )


def _outcome_of(exc: BaseException) -> history.Outcome:
    if isinstance(exc, FenceRejected):
        return "refused"
    # What interrupts (a cancelled task, Ctrl-C) may have interrupted a commit.
    if isinstance(exc, OutcomeUnknownError) or not isinstance(exc, Exception):
        return "unknown"
    return "contention" if isinstance(exc, ContentionError) else "failed"
