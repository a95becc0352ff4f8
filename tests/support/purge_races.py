"""Records of applied effects are purged while, or before, old work is replayed: which must not be done again."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from adapters.sql import purge_applied
from fencing import Token, errors, fenced_write
from support.downstreams import PsycopgDownstream
from support.locks import blockers, eventually

FIRST, REPLAY = Token(7, "shop", "l1"), Token(9, "shop", "l1")
LONG_AGO, KEPT = timedelta(days=100), timedelta(days=50)


def race(downstream: PsycopgDownstream) -> tuple[str, int]:
    """Tell what goes wrong, and how many were tried."""
    examples = (replay_comes_later, replay_has_an_old_snapshot, replay_waits_for_the_purge, late_work_is_remembered)
    for number, example in enumerate(examples, 1):
        downstream.fresh("create")
        with psycopg.connect(downstream.dsn, autocommit=True) as connection:
            connection.execute("delete from fencing_applied")
            connection.execute("update fencing_horizon set horizon = null")
        try:
            example(downstream.dsn)
        except AssertionError as exc:
            return f"{example.__name__}: {exc}", number
    return "", len(examples)


def replay_comes_later(dsn: str) -> None:
    """Old work is replayed under a newer token after its record was purged."""
    began = _applied_long_ago(dsn)
    with _open(dsn) as connection, connection.transaction():
        purge_applied(connection, KEPT)
    with _open(dsn) as connection:
        _refused(connection, began)


def replay_has_an_old_snapshot(dsn: str) -> None:
    """The replay's transaction looked at the database before the purge."""
    began = _applied_long_ago(dsn)
    with _open(dsn, "repeatable read") as late, _open(dsn) as connection:

        def purge(_: Any) -> None:
            late.execute("select count(*) from fencing_applied")
            with connection.transaction():
                purge_applied(connection, KEPT)

        _refused(late, began, purge)


def replay_waits_for_the_purge(dsn: str) -> None:
    """The replay meets its record while that is being removed."""
    began = _applied_long_ago(dsn)
    with _open(dsn) as late, _open(dsn) as connection, ThreadPoolExecutor(1) as pool:
        with connection.transaction():
            purge_applied(connection, KEPT)
            replayed = pool.submit(_refused, late, began)
            pid = late.info.backend_pid
            eventually(lambda: replayed.done() or blockers(dsn, pid), "the replay waits, or ends")
        replayed.result(60)


def late_work_is_remembered(dsn: str) -> None:
    """Old work was applied only now, so what began meanwhile under its key finds the record."""
    began = datetime.now(UTC) - LONG_AGO
    with _open(dsn) as connection:
        with connection.transaction():
            _apply(connection, FIRST, began)
        with connection.transaction():
            purge_applied(connection, KEPT)
        with connection.transaction():
            assert _apply(connection, REPLAY, began + LONG_AGO / 2 + timedelta(days=1)) == str(FIRST), "applied twice"


def _open(dsn: str, level: str = "read committed") -> "psycopg.Connection[Any]":
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute(f"set default_transaction_isolation = '{level}'")
    return connection


def _applied_long_ago(dsn: str) -> datetime:
    began = datetime.now(UTC) - LONG_AGO
    with _open(dsn) as connection:
        with connection.transaction():
            _apply(connection, FIRST, began)
        connection.execute("update fencing_applied set applied_at = %s", [began])
    return began


def _apply(connection: Any, token: Token, began: datetime, ran: list[Token] | None = None) -> Any:
    def effect(_: Any) -> str:
        if ran is not None:
            ran.append(token)
        return str(token)

    return fenced_write(connection, "invoice/1", effect=effect, token=token, once="charge", began_at=began)


def _refused(connection: Any, began: datetime, before: Callable[[Any], None] = lambda _: None) -> None:
    ran: list[Token] = []
    with contextlib.suppress(errors.KeyExpiredError, errors.ContentionError):
        with connection.transaction():
            before(connection)
            _apply(connection, REPLAY, began, ran)
        raise AssertionError("old work was replayed after its record was purged, and was not refused")
    assert not ran, "an effect whose record was purged was run again, though it was rolled back then"
