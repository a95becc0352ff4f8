"""The tasks that an application registers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from scheduler._job import Job
from scheduler._retry import Retry

Fences = Callable[[Job], Any]
"""Returns (or, async, is awaited for) the job's (target, resource, …) tuples."""

MIN_LEASE = 0.5
MAX_LEASE = 24 * 3600.0
MAX_RUNTIME = 366 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Task:
    """A registered task: its handler and the rules for its jobs."""

    name: str
    handler: Callable[[Job], Any]
    lease: float
    retry: Retry
    fences: Fences | None
    preempt: bool
    max_yields: int
    is_async: bool
    max_runtime: float | None


def make_task(
    name: str,
    handler: Callable[[Job], Any],
    lease: float,
    retry: Retry,
    fences: Fences | Iterable[Any] | None,
    preempt: bool,
    max_yields: int,
    max_runtime: float | None = None,
) -> Task:
    """Check the rules of a task. Raises ``ValueError`` or ``TypeError`` that names the task and the setting."""
    check_name("task", name)
    if not callable(handler):
        raise TypeError(f"task {name!r}: the handler is called with the job; {type(handler).__name__} is not callable")
    if not isinstance(lease, int | float) or not math.isfinite(lease) or not MIN_LEASE <= lease <= MAX_LEASE:
        raise ValueError(
            f"task {name!r}: lease= is a number of seconds from {MIN_LEASE} to {MAX_LEASE:.0f}, not {lease!r}"
        )
    if not isinstance(retry, Retry):
        raise TypeError(f"task {name!r}: retry= takes a Retry, not {type(retry).__name__}")
    if type(max_yields) is not int or max_yields < 1:
        raise ValueError(f"task {name!r}: max_yields= is a whole number from 1, not {max_yields!r}")
    if max_runtime is not None and (
        not isinstance(max_runtime, int | float)
        or isinstance(max_runtime, bool)
        or not MIN_LEASE <= max_runtime <= MAX_RUNTIME
    ):
        raise ValueError(
            f"task {name!r}: max_runtime= is None or a number of seconds from {MIN_LEASE} to {MAX_RUNTIME:.0f}, "
            f"not {max_runtime!r}"
        )
    if fences is not None and not callable(fences):
        fixed = list(fences)
        declared_fences(name, fixed)

        def fences(_: Job) -> Any:
            return fixed

    return Task(
        name,
        handler,
        float(lease),
        retry,
        fences,
        preempt,
        max_yields,
        inspect.iscoroutinefunction(handler),
        float(max_runtime) if max_runtime is not None else None,
    )


def declared_fences(task: str, given: object) -> list[tuple[Any, list[Any]]]:
    """Return what a task's ``fences=`` gave for a job, as (target, resources). ``TypeError`` for another shape."""
    found: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for one in found:
        if not isinstance(one, tuple | list) or len(one) < 2:
            raise TypeError(
                f"task {task!r}: fences= gives a list of (target, resource, …), such as [(engine, 'invoice/7')], "
                f"not {given!r}"
            )
    return [(target, resources) for target, *resources in found]


def check_name(what: str, name: object, most: int = 200) -> str:
    """Return ``name`` if it can name a task, queue or lease. ``TypeError`` or ``ValueError`` otherwise."""
    article = "an" if what[:1] in "aeio" else "a"
    if not isinstance(name, str):
        raise TypeError(f"{article} {what} is named by a str, not {type(name).__name__} ({name!r})")
    if not name or len(name) > most or not name.isprintable():
        raise ValueError(f"{article} {what}'s name is 1 to {most} printable characters, not {name[:80]!r}")
    return name
