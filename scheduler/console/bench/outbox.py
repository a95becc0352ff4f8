"""The outbox: what it costs to be fenced, and that a claim stays flat."""

from __future__ import annotations

from scheduler.console.bench import _backlog, _relaying
from scheduler.console.bench._frame import Bench

BENCHES = [
    Bench(
        "relay",
        f"messages of 5 kB relayed over {_relaying.CONNECTIONS} kept connections, each claimed, committed as "
        "dispatching before its content and recorded, against smtplib on as many connections with no database",
        "mails/s",
        "higher",
        0.9,
        _relaying.pair,
    ),
    Bench(
        "claim_backlog",
        f"a claim of {_backlog.BATCH} out of {_backlog.ROWS:,} rows, sent, due and future, against one out of a "
        "table with due rows alone; its plan is printed",
        "ms/claim",
        "lower",
        1.5,
        _backlog.pair,
    ),
]
