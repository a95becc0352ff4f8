"""Takes away what the demo made in servers that it was given, once the demo is done or gone.

Run as a program, ``python -m scheduler.console.demo._janitor``, it reads a line of JSON with the schemas and keys,
waits for the end of its standard input, which comes however the demo ended, and removes them. One way, always used.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

_PATIENCE = 60.0
"""Seconds for which what a worker still holds locked is asked for again."""


class Janitor:
    """The demo's side: start it before anything is made, and leave the ``with`` block to have it all removed."""

    def __init__(self, *, dsn: str | None, schemas: Sequence[str], redis: str | None, keys: Sequence[str]) -> None:
        """``dsn`` and ``redis``: the given servers; None for one of our own, which goes as a whole."""
        self._orders = {"dsn": dsn, "schemas": list(schemas), "redis": redis, "keys": list(keys)}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._orders["dsn"] or self._orders["redis"]:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, start_new_session=True
            )
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._orders).encode() + b"\n")
            self._process.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def main() -> None:
    """Wait, then remove."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of the demo is a reason
    line = sys.stdin.readline()
    if not line:
        return
    orders: dict[str, Any] = json.loads(line)
    sys.stdin.read()
    if orders["redis"]:
        import redis

        redis.Redis.from_url(orders["redis"]).delete(*orders["keys"])
    if orders["dsn"]:
        _drop(orders["dsn"], orders["schemas"])


def _drop(dsn: str, schemas: list[str]) -> None:
    import psycopg
    from psycopg import sql

    give_up = time.monotonic() + _PATIENCE
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set lock_timeout = '2s'")
        for schema in schemas:
            statement = sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema))
            while True:
                try:
                    connection.execute(statement)
                    break
                except psycopg.errors.LockNotAvailable:
                    if time.monotonic() > give_up:
                        raise


if __name__ == "__main__":
    main()
