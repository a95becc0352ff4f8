"""The frame: rounds in which ours and the baseline take turns on the same servers; medians, spread and the ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from scheduler.console.embedded import Postgres, Valkey

if TYPE_CHECKING:
    from scheduler.console.embedded import SmtpSink


class Servers:
    """The servers of one run, each started when a benchmark first asks for it; those that were given are used instead.

    A context manager: what it started ends with the block.
    """

    def __init__(self, postgres: str | None = None, redis: str | None = None, mariadb: str | None = None) -> None:
        self._postgres, self._redis, self._mariadb = postgres, redis, mariadb
        self._started = ExitStack()

    @cached_property
    def postgres(self) -> str:
        """The ``postgresql://`` address of a database."""
        return self._postgres or self._started.enter_context(Postgres()).dsn()

    @cached_property
    def redis(self) -> str:
        """The ``redis://`` address of a server."""
        return self._redis or self._started.enter_context(Valkey()).url

    @property
    def mariadb(self) -> str:
        """The SQLAlchemy URL of a database; the project brings no such server. Raises ``ValueError`` without one."""
        if self._mariadb is None:
            raise ValueError("no MariaDB was given")
        if not self._mariadb.startswith(("mysql", "mariadb")):
            raise ValueError(f"--mariadb takes a SQLAlchemy URL (mysql+pymysql://…), not {self._mariadb!r}")
        return self._mariadb

    def have(self, one: Bench) -> bool:
        """Whether there is what the benchmark needs."""
        return one.needs != "mariadb" or self._mariadb is not None

    @cached_property
    def smtp(self) -> SmtpSink:
        """A mail server that keeps what it is sent, on a thread of this process."""
        # Now only: it brings the outbox and what that needs, and the other groups need none of it.
        from scheduler.console.embedded import SmtpSink

        return self._started.enter_context(SmtpSink())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()


Measure = Callable[[Servers, float], float]
"""Takes the servers and the scale (1 is the full amount of work); returns the figure, in the benchmark's unit."""

Pair = Callable[[Servers, float, bool], tuple[float, float]]
"""One round: takes the servers, the scale and whether ours goes first; returns the figures (ours, baseline)."""


def in_turn(ours: Measure, base: Measure) -> Pair:
    """Return the round that runs one after the other."""

    def pair(servers: Servers, scale: float, ours_first: bool) -> tuple[float, float]:
        if ours_first:
            first = ours(servers, scale)
            return first, base(servers, scale)
        second = base(servers, scale)
        return ours(servers, scale), second

    return pair


NO_GOAL = 0.0
"""For a ratio that is told and not judged."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One comparison. ``goal`` is for the ratio ours / baseline; ``better`` says which way it should go."""

    name: str
    what: str
    unit: str
    better: Literal["higher", "lower"]
    goal: float
    pair: Pair
    needs: Literal["", "mariadb"] = ""
    """A server that has to be given."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the rounds gave."""

    bench: Bench
    all_ours: Sequence[float]
    all_base: Sequence[float]

    @property
    def ours(self) -> float:
        """The median of ours."""
        return statistics.median(self.all_ours)

    @property
    def base(self) -> float:
        """The median of the baseline."""
        return statistics.median(self.all_base)

    @property
    def ratio(self) -> float:
        """The median of the rounds' own ratios: what is shared by a round (a busy neighbour) falls out."""
        return statistics.median(ours / base for ours, base in zip(self.all_ours, self.all_base, strict=True))

    @property
    def ok(self) -> bool:
        """Whether the goal was reached."""
        return self.ratio >= self.bench.goal if self.bench.better == "higher" else self.ratio <= self.bench.goal

    def as_json(self) -> dict[str, Any]:
        """The figures as JSON holds them."""
        return {
            "ours": round(self.ours, 3),
            "base": round(self.base, 3),
            "ratio": round(self.ratio, 3),
            "better": self.bench.better,
            "goal": self.bench.goal,
            "ok": self.ok,
        }


def measure(
    benches: Sequence[Bench], rounds: int, scale: float, servers: Servers, progress: Callable[[str], None]
) -> list[Result]:
    """Run every benchmark ``rounds`` times, ours and the baseline alternating; who goes first alternates too."""
    figures: dict[str, tuple[list[float], list[float]]] = {one.name: ([], []) for one in benches}
    for number in range(rounds):
        for one in benches:
            ours, base = one.pair(servers, scale, number % 2 == 0)
            figures[one.name][0].append(ours)
            figures[one.name][1].append(base)
            progress(
                f"round {number + 1}/{rounds} {one.name}: ours {ours:,.4g}, baseline {base:,.4g} {one.unit}, "
                f"ratio {ours / base:.2f}"
            )
    return [Result(one, *figures[one.name]) for one in benches]
