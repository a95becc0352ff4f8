"""Bulk enqueuing against a COPY written by hand into a table as small as it can be."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import psycopg

from scheduler.console.bench._drain import RAW_TABLE, drop, filled
from scheduler.console.bench._frame import Servers

ROWS = 50_000


def _args(number: int) -> dict[str, object]:
    return {"to": f"user{number}@example.com", "n": number, "kind": "send_invoice"}


def ours(servers: Servers, scale: float) -> float:
    """Rows a second."""
    rows = max(1, int(ROWS * scale))
    app = filled(servers.postgres, 0)
    given = [_args(number) for number in range(rows)]
    began = time.perf_counter()
    app.enqueue_many("no-op", given)
    elapsed = time.perf_counter() - began
    app.close()
    drop(servers.postgres)
    return rows / elapsed


def base(servers: Servers, scale: float) -> float:
    """Rows a second, the arguments written as JSON beforehand."""
    rows = max(1, int(ROWS * scale))
    with psycopg.connect(servers.postgres, autocommit=True) as connection:
        connection.execute(RAW_TABLE)
        due = datetime.now(UTC)
        given = [(due, json.dumps(_args(number))) for number in range(rows)]
        began = time.perf_counter()
        with (
            connection.transaction(),
            connection.cursor().copy("copy fencing_bench_raw (due_at, payload) from stdin") as copy,
        ):
            for row in given:
                copy.write_row(row)
        elapsed = time.perf_counter() - began
        connection.execute("drop table fencing_bench_raw")
    return rows / elapsed
