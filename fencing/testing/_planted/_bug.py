"""A planted bug as data, so that a matrix of what is found by what can be printed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One fault. ``plant`` makes a broken :class:`Downstream` or :class:`LeaseSystem` for the length of a block.

    ``seen_at``: the public report or the project where such a fault was. ``layer``: what is broken. ``suites``: each of
    them must find it by itself.
    """

    name: str
    seen_at: str
    layer: str
    suites: tuple[str, ...]
    plant: Callable[[], AbstractContextManager[Any]]
