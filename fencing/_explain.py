"""Looking at marks: who holds a resource, since when, whom it refused; and which resources there are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from fencing._law import Mark, check_resources
from fencing._refusals import Refusal, recent_refusals
from fencing._registry import guard_for, is_async


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of a resource: its ``mark`` (None: there is none), and newest first its last ``refusals`` and the
    ``acts`` of people who moved the mark past the law."""

    downstream: str
    resource: str
    mark: Mark | None
    refusals: tuple[Refusal, ...] = ()
    acts: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.mark is None:
            lines = [f"{self.resource!r} has no mark at {self.downstream}"]
        else:
            since = f" since {self.mark.at.astimezone(UTC).isoformat(sep=' ')}" if self.mark.at else ""
            lines = [
                f"{self.resource!r} at {self.downstream} is held under {self.mark.token} by "
                f"{self.mark.holder or 'an unnamed holder'}{since}"
            ]
        if not self.refusals:
            lines.append("  no refusal is known")
        lines += [f"  {_time(refusal.at)} {refusal}" for refusal in self.refusals]
        lines += [f"  {act}" for act in self.acts]
        return "\n".join(lines)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


@runtime_checkable
class Explains(Protocol):
    """The optional part of a :class:`Guard` that keeps its refusals in the downstream."""

    def explain(self, resource: str) -> Explanation:
        """Say what is known of the resource."""


@runtime_checkable
class ExplainsAsync(Protocol):
    """The same of an :class:`AsyncGuard`."""

    async def aexplain(self, resource: str) -> Explanation:
        """Say what is known of the resource."""


@runtime_checkable
class ListsMarks(Protocol):
    """The optional part of a :class:`Guard` that can list its marks."""

    def list_marks(self, prefix: str, limit: int) -> list[tuple[str, Mark]]:
        """The marks of resources whose names begin with ``prefix``, by name."""


@runtime_checkable
class ListsMarksAsync(Protocol):
    """The same of an :class:`AsyncGuard`."""

    async def alist_marks(self, prefix: str, limit: int) -> list[tuple[str, Mark]]:
        """The marks of resources whose names begin with ``prefix``, by name."""


def explain(target: Any, resource: str, /) -> Any:
    """Return an :class:`Explanation` of the resource (awaitable for an async target): to look at, as ``read_mark``.

    Where the downstream keeps no refusals, those are told that this process has met.
    """
    (name,) = check_resources((resource,))
    guard: Any = guard_for(target)
    if is_async(guard):
        return guard.aexplain(name) if isinstance(guard, ExplainsAsync) else _explain_async(guard, name)
    if isinstance(guard, Explains):
        return guard.explain(name)
    return Explanation(guard.downstream, name, guard.read_mark(name), recent_refusals(name, guard.downstream))


async def _explain_async(guard: Any, name: str) -> Explanation:
    return Explanation(guard.downstream, name, await guard.aread_mark(name), recent_refusals(name, guard.downstream))


def list_marks(target: Any, prefix: str = "", *, limit: int = 1000) -> Any:
    """Return ``(resource, Mark)`` for at most ``limit`` resources whose names begin with ``prefix``, by name.

    Awaitable for an async target. Raises ``TypeError`` for a target that cannot list.
    """
    if limit < 1:
        raise ValueError(f"limit is at least 1, not {limit!r}")
    guard: Any = guard_for(target)
    if is_async(guard):
        if isinstance(guard, ListsMarksAsync):
            return guard.alist_marks(prefix, limit)
    elif isinstance(guard, ListsMarks):
        return guard.list_marks(prefix, limit)
    raise TypeError(f"{guard.downstream} cannot list its marks: its guard has no list_marks")
