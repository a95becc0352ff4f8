"""Races of two holders at one mark of PostgreSQL, which a guard with the wrong locks loses."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import psycopg

from adapters.sql import compact
from fencing import Token, errors, fenced_write, read_mark
from support.downstreams import PsycopgDownstream
from support.locks import blockers, eventually

OLDER, NEWER = Token(2**53, "shop", "l1"), Token(2**53 + 1, "shop", "l1")


def race(downstream: PsycopgDownstream) -> tuple[str, int]:
    """Two holders of one resource on two connections of PostgreSQL, ordered by the locks that they wait for."""
    for number, example in enumerate((older_comes_second, newer_comes_second, compaction_comes_second), 1):
        downstream.fresh("create")
        try:
            example(downstream.dsn)
        except AssertionError as exc:
            return f"{example.__name__}: {exc}", number
    return "", 3


def older_comes_second(dsn: str) -> None:
    """An older holder writes while a newer one's transaction is open: it waits, and is refused after the commit."""
    with _begun(dsn, OLDER):
        pass
    with _Second(dsn, OLDER) as second:
        with _begun(dsn, NEWER):
            waits = second.waits_or_ends()
        if waits:
            with contextlib.suppress(errors.StaleTokenError):
                second.result()
                raise AssertionError(f"{OLDER} waited for the commit of {NEWER}, and was accepted after it")
            assert mark_of(dsn) == NEWER, f"the mark fell to {mark_of(dsn)}"


def newer_comes_second(dsn: str) -> None:
    """A newer holder writes while an older one's transaction, not its first, is open: it waits for its commit."""
    with _begun(dsn, OLDER):
        pass
    with _Second(dsn, NEWER) as second:
        with _begun(dsn, OLDER):
            waits = second.waits_or_ends()
        assert waits, f"{NEWER} was committed while {OLDER} was still writing, which committed after it"
        second.result()
    assert mark_of(dsn) == NEWER


def compaction_comes_second(dsn: str) -> None:
    """Marks are compacted while an older holder is making one: the floor is set after that, so that it is seen."""
    try:
        with _Second(dsn, NEWER, lambda connection: compact(connection, NEWER, idle=0)) as second:
            with _begun(dsn, OLDER):
                waits = second.waits_or_ends()
            assert waits, f"the floor {NEWER} was set while {OLDER} was making a mark, which stands below it now"
            second.result()
        assert mark_of(dsn) is None
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("update fencing_floor set floors = '{}'")


def mark_of(dsn: str) -> Token | None:
    """The mark of the resource of the races."""
    with psycopg.connect(dsn) as connection, connection.transaction():
        mark = read_mark(connection, "invoice/1")
        return mark and mark.token


@contextlib.contextmanager
def _begun(dsn: str, token: Token) -> Iterator[psycopg.Connection[Any]]:
    """A transaction in which a holder has written, not to a row that the other one writes; committed with the block."""
    with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction():
        with fenced_write(connection, "invoice/1", token=token):
            connection.execute("insert into kit_value values (gen_random_uuid()::text, %s)", [str(token)])
        yield connection


class _Second:
    """A holder who comes second, on a thread and a connection of its own."""

    def __init__(self, dsn: str, token: Token, act: Callable[[Any], object] | None = None) -> None:
        """``act``: what is done in the transaction instead of a write."""
        self._dsn = dsn
        self._act = act
        self._token = token
        self._pool = ThreadPoolExecutor(1)
        self._done: Future[None] | None = None
        self._connection = psycopg.connect(dsn, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self._connection.close()

    def waits_or_ends(self) -> bool:
        """Begin, and return whether it waits for a lock; False if it ended without."""
        self._done = self._pool.submit(self._write)
        pid = self._connection.info.backend_pid
        eventually(lambda: self._done.done() or blockers(self._dsn, pid), "the second holder waits, or ends")
        return not self._done.done()

    def result(self) -> None:
        """How it ended."""
        assert self._done is not None
        self._done.result(timeout=60)

    def _write(self) -> None:
        if self._act is not None:
            with self._connection.transaction():
                self._act(self._connection)
            return
        with self._connection.transaction(), fenced_write(self._connection, "invoice/1", token=self._token):
            self._connection.execute("insert into kit_value values (gen_random_uuid()::text, 'second')")
