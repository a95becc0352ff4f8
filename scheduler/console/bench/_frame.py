"""The frame: rounds in which ours and the baseline take turns on one server; medians, spread and the ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from scheduler.console.embedded import Postgres

Measure = Callable[[str, float], float]
"""Takes the server's connection string and the scale; returns the figure, in the benchmark's unit."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One comparison. ``goal`` is for the ratio ours / baseline; ``better`` says which way it should go."""

    name: str
    what: str
    unit: str
    better: Literal["higher", "lower"]
    goal: float
    ours: Measure
    base: Measure


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
            "unit": self.bench.unit,
            "rounds": {"ours": [round(x, 3) for x in self.all_ours], "base": [round(x, 3) for x in self.all_base]},
        }


def measure(
    benches: Sequence[Bench], rounds: int, scale: float, dsn: str | None, progress: Callable[[str], None]
) -> list[Result]:
    """Run every benchmark ``rounds`` times, ours and the baseline alternating; who goes first alternates too."""
    figures: dict[str, tuple[list[float], list[float]]] = {one.name: ([], []) for one in benches}
    with _server(dsn) as address:
        for number in range(rounds):
            for one in benches:
                ours, base = figures[one.name]
                if number % 2:
                    base.append(one.base(address, scale))
                    ours.append(one.ours(address, scale))
                else:
                    ours.append(one.ours(address, scale))
                    base.append(one.base(address, scale))
                progress(
                    f"round {number + 1}/{rounds} {one.name}: ours {ours[-1]:,.0f}, baseline {base[-1]:,.0f} {one.unit}"
                )
    return [Result(one, *figures[one.name]) for one in benches]


@contextmanager
def _server(dsn: str | None) -> Iterator[str]:
    if dsn:
        yield dsn
        return
    with Postgres() as server:
        yield server.dsn()
