"""The highest and the lowest token before or after a moment, in logarithmic time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from fencing.history._violations import Step


class Highest:
    """Which of the steps that had ended before a moment has the highest token."""

    def __init__(self, steps: Iterable[Step]) -> None:
        ordered = sorted(steps, key=attrgetter("ended"))
        self._ends = [step.ended for step in ordered]
        self._best = _running(ordered, lambda best, step: step if step.value > best.value else best)

    def before(self, moment: int) -> Step | None:
        position = bisect_left(self._ends, moment)
        return self._best[position - 1] if position else None


class Lowest:
    """Which of the steps that began after a moment has the lowest token."""

    def __init__(self, steps: Iterable[Step]) -> None:
        ordered = sorted(steps, key=attrgetter("began"), reverse=True)
        self._begins = [-step.began for step in ordered]
        self._best = _running(ordered, lambda best, step: step if step.value < best.value else best)

    def after(self, moment: int) -> Step | None:
        position = bisect_left(self._begins, -moment)
        return self._best[position - 1] if position else None


class Sorted:
    """Numbers, and the smallest of them above another."""

    def __init__(self) -> None:
        self._values: list[int] = []

    def add(self, value: int) -> None:
        position = bisect_left(self._values, value)
        if position == len(self._values) or self._values[position] != value:
            self._values.insert(position, value)

    def above(self, value: int) -> int | None:
        position = bisect_right(self._values, value)
        return self._values[position] if position < len(self._values) else None


def _running(steps: Sequence[Step], better: Callable[[Step, Step], Step]) -> list[Step]:
    best: list[Step] = []
    for step in steps:
        best.append(better(best[-1], step) if best else step)
    return best
