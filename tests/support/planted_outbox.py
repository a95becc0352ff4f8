"""Planted bugs in the outbox: its statements and rules with one small fault each, found by :mod:`support.handover`."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from adapters.email import _batch, _claims, _commits, _outcome
from fencing.testing import PlantedBug
from support.outbox import outbox_engine

UNKNOWN = "no report known"
Break = Callable[[], AbstractContextManager[Any]]


def _set(module: object, name: str, value: object) -> Break:
    def broken() -> AbstractContextManager[Any]:
        assert hasattr(module, name), f"{name} to plant a bug in is not in {module}"
        return mock.patch.object(module, name, value)

    return broken


def _another_message() -> AbstractContextManager[Any]:
    sound = _batch.BatchRun._deliver

    def rendered_again(self: Any, row: Any, session: Any, handover: Any) -> Any:
        if row.in_doubt:
            row = dataclasses.replace(row, message=row.message + b"rendered again\r\n")
        return sound(self, row, session, handover)

    return mock.patch.object(_batch.BatchRun, "_deliver", rendered_again)


def _guessed(fate: str) -> Break:
    def broken() -> AbstractContextManager[Any]:
        sound = _outcome.conclude

        def guessing(delivery: Any, **rest: Any) -> Any:
            answers = {
                address: dataclasses.replace(answer, fate=fate if answer.fate == "uncertain" else answer.fate)
                for address, answer in delivery.answers.items()
            }
            return sound(dataclasses.replace(delivery, answers=answers), **rest)

        return mock.patch.object(_batch, "conclude", guessing)

    return broken


BUGS: dict[str, tuple[str, Break]] = {
    "no dispatching before the content": (
        "django-post_office (measured)",
        _set(_commits.Commits, "gate", lambda *_: "open"),
    ),
    "claimed under an older token": (UNKNOWN, _set(_claims, "_ADMITTED", "(:issuer = :issuer and :token > 0)")),
    "timeout after DATA, resent": ("freescout #5457", _guessed("deferred")),
    "timeout after DATA, taken for sent": (UNKNOWN, _guessed("sent")),
    "partly refused, marked sent": (
        "courier #62, repoze.sendmail #48",
        _set(_outcome, "_WORST", ("uncertain", "sent", "deferred", "rejected")),
    ),
    "rendered again for the retry": ("novu #12247, vm0 #34645", _another_message),
}


def outbox_bugs(directory: Path) -> list[PlantedBug]:
    """Faults of the outbox."""
    return [
        PlantedBug(
            name,
            seen_at,
            "outbox",
            ("take-over",),
            lambda broken=broken, number=number: _planted(broken, directory / str(number)),
        )
        for number, (name, (seen_at, broken)) in enumerate(BUGS.items())
    ]


@contextlib.contextmanager
def _planted(broken: Break, directory: Path) -> Iterator[Any]:
    directory.mkdir()
    engine = outbox_engine("sqlite", "", directory)
    try:
        with broken():
            yield engine
    finally:
        engine.dispose()
