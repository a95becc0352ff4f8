"""The claim of a batch out of a table with a long history and a long future, against one with what is due alone."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import sqlalchemy
from sqlalchemy import text

from adapters.email._claim import Claim
from adapters.email._claims import claim_plan
from adapters.email._hold import Database
from fencing import Token
from scheduler.console.bench._fault_relay import outbox_engine
from scheduler.console.bench._faults import Place, place_at
from scheduler.console.bench._frame import Servers

ROWS = 1_600_000
BATCH = 50
CLAIMS = 40
DUE = BATCH * CLAIMS * 2
"""Enough for all claims of a round, few beside the rest."""

_tokens = itertools.count(1)
_SEED = """
insert into fencing_outbox (key, state, priority, due_at, policy, mail_from, message_id, content, message, size,
    created_at, updated_at)
select :state || n, :state_of, mod(n, 3), now() + make_interval(secs => n * cast(:step as double precision)), 'hold',
    'sender@example.org', n || '@example.org', '{}', case when :state_of = 'pending' then :message end, 5000,
    now(), now()
from generate_series(1, cast(:count as integer)) n
"""


def pair(servers: Servers, scale: float, ours_first: bool) -> tuple[float, float]:
    """One round: milliseconds of a claim, the median of forty, in each of the two tables, claim by claim in turn."""
    backlog = max(DUE, int(ROWS * scale)) - DUE
    with place_at(servers.postgres) as place, _outbox(place, backlog) as full, _outbox(place, 0) as short:
        times: dict[sqlalchemy.Engine, list[float]] = {full: [], short: []}
        for _ in range(CLAIMS):
            for engine in (full, short) if ours_first else (short, full):
                times[engine].append(_claim(engine))
        if ours_first:
            _show_plan(full)
        return statistics.median(times[full]), statistics.median(times[short])


@contextmanager
def _outbox(place: Place, backlog: int) -> Iterator[sqlalchemy.Engine]:
    """An outbox with what is due, and with a quarter of ``backlog`` in the future and the rest in the past."""
    engine = outbox_engine(place.dsn, place.outbox())
    with engine.begin() as connection:
        _seed(connection, "due", "pending", DUE, -0.01)
        _seed(connection, "future", "pending", backlog // 4, 60.0)
        _seed(connection, "past", "sent", backlog - backlog // 4, -60.0)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("vacuum analyze fencing_outbox")
    try:
        yield engine
    finally:
        engine.dispose()


def _claim(engine: sqlalchemy.Engine) -> float:
    claim = Claim("bench", Token(next(_tokens), "bench", "bench"), 60.0)
    began = time.perf_counter()
    batch = Database(engine).run(lambda dialect: claim_plan(claim, BATCH, 10, dialect))
    elapsed = time.perf_counter() - began
    if len(batch.rows) != BATCH:
        raise RuntimeError(f"a claim brought {len(batch.rows)} rows: the figure is worth nothing")
    return elapsed * 1000


def _seed(connection: sqlalchemy.Connection, name: str, state: str, count: int, step: float) -> None:
    if count:
        values = {"state": name, "state_of": state, "count": count, "step": step, "message": b"x" * 300}
        connection.execute(text(_SEED), values)


def _show_plan(engine: sqlalchemy.Engine) -> None:
    """The plan of the claim itself, after the statements for settings and for relays that are gone."""
    plan = claim_plan(Claim("bench", Token(next(_tokens), "bench", "bench"), 60.0), BATCH, 10, "postgresql")
    settings = next(plan)
    plan.send([])
    statement = plan.send([])
    with engine.connect() as connection:  # rolled back
        connection.execute(text(settings.sql))
        asked = text(f"explain (analyze, costs off, timing off) {statement.sql}")
        for (line,) in connection.execute(asked, dict(statement.params)):
            click.echo(f"  {line}", err=True)
