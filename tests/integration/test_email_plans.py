"""The claim's cost does not grow with what was sent and what is not due: its plans, on a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from support.outbox import outbox_engine

from adapters._tx import Statement
from adapters.email._claim import Claim
from adapters.email._claims import claim_plan, work_plan
from fencing import Token

CLAIM = Claim("owner", Token(1, "test", "l1"), 60.0)


@pytest.fixture
def engine(pg_dsn: str, tmp_path: Path) -> Iterator[Engine]:
    made = outbox_engine("postgresql", pg_dsn, tmp_path)
    with made.begin() as connection:
        for state, due in (("sent", "now()"), ("pending", "now() + interval '1 day'"), ("pending", "now()")):
            connection.execute(
                text(
                    "insert into fencing_outbox (key, state, priority, due_at, policy, mail_from, message_id, content,"
                    " message, size, created_at, updated_at)"
                    f" select gen_random_uuid(), '{state}', mod(n, 3), {due}, 'hold', 'a', 'b', '{{}}', 'x', 1,"
                    " now(), now() from generate_series(1, 5000) n"
                )
            )
        connection.execute(text("analyze fencing_outbox"))
    yield made
    made.dispose()


def explained(engine: Engine, statement: Statement) -> str:
    with engine.connect() as connection:
        rows = connection.execute(text(f"explain {statement.sql}"), dict(statement.params))
        return "\n".join(row[0] for row in rows)


def test_looking_and_claiming_read_the_partial_indexes_alone(engine: Engine) -> None:
    look = explained(engine, next(work_plan("postgresql")))
    plan = claim_plan(CLAIM, 50, 60, "postgresql")
    rescue, claim = explained(engine, next(plan)), explained(engine, plan.send([]))
    refused = explained(engine, plan.send([]))
    for found in (look, rescue, claim, refused):
        assert "Seq Scan" not in found, found
    assert "fencing_outbox_held" in look
    assert "fencing_outbox_held" in rescue
    for found in (claim, refused):
        # Within a priority the index is entered at its due end: what lies in the future is not read.
        assert "Index Cond: ((priority = level" in found, found
        assert "(due_at <= " in found
