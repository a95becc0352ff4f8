"""The claim's cost does not grow with what was sent and what is not due: its plans, on a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from support.outbox import outbox_engine

from adapters._tx import Statement
from adapters.email._claim import Claim
from adapters.email._claims import claim_plan, renew_plan, work_plan
from adapters.email._diagnose import diagnose_plan
from adapters.email._entries import list_plan, stats_plan
from adapters.email._lookups import doubts_plan
from adapters.email._order import sweep_plan, unpark_plan, wake_plan
from adapters.email._outcome import Settlement
from adapters.email._settle import Through, dispatch_plan, group_plan, release_plan, sent_plan, settle_plan
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


def explained(engine: Engine, statement: Statement, before: Statement | None = None, how: str = "explain") -> str:
    with engine.connect() as connection:
        if before is not None:
            connection.execute(text(before.sql))
        rows = connection.execute(text(f"{how} {statement.sql}"), dict(statement.params))
        return "\n".join(row[0] for row in rows)


def test_looking_and_claiming_read_the_partial_indexes_alone(engine: Engine) -> None:
    look = explained(engine, next(work_plan("postgresql")))
    plan = claim_plan(CLAIM, 50, 60, "postgresql")
    settings = next(plan)
    rescue, claim = explained(engine, plan.send([])), explained(engine, plan.send([]), settings)
    refused = explained(engine, plan.send([]))
    for found in (look, rescue, claim, refused):
        assert "Seq Scan" not in found, found
    assert "fencing_outbox_uncertain" in look
    assert "fencing_outbox_held" in look
    assert "fencing_outbox_held" in rescue
    for found in (claim, refused):
        # Within a priority the index is entered at its due end: what lies in the future is not read.
        assert "Index Cond: ((priority = level" in found, found
        assert "(due_at <= " in found


SENT = Settlement("sent", 1, None, "250 ok", {"a": ("sent", "250 ok")})
FAILED = Settlement("failed", 1, None, "550 no", {"a": ("failed", "550 no")})


def test_what_is_written_about_rows_finds_them_by_their_primary_key(engine: Engine) -> None:
    """Never by a partial index on the state, in which the entries of all rows that left it stay until a vacuum."""
    ids = dict.fromkeys(range(1, 51), SENT)
    for plan in (
        dispatch_plan(CLAIM, {number: {} for number in ids}, "postgresql"),
        sent_plan(CLAIM, ids, "postgresql"),
        group_plan(CLAIM, ids, list(ids), Through()),
        settle_plan(CLAIM, 1, FAILED, "postgresql"),
        release_plan(CLAIM, list(ids), "postgresql"),
        unpark_plan(list(ids), "postgresql"),
        wake_plan(list(ids), "postgresql"),
    ):
        found = explained(engine, next(plan))
        assert "Seq Scan on fencing_outbox" not in found, found
        assert "fencing_outbox_pkey" in found, found
        assert "using fencing_outbox_held" not in found, found
        assert "using fencing_outbox_pending" not in found, found


def test_renewals_look_ups_sweeps_and_figures_read_the_partial_indexes(engine: Engine) -> None:
    for plan, index in (
        (renew_plan(CLAIM, "postgresql"), "fencing_outbox_held"),
        (doubts_plan(CLAIM, "smtp", 5, "postgresql"), "fencing_outbox_uncertain"),
        (sweep_plan(None), "fencing_outbox_parked"),
        (sweep_plan("k"), "fencing_outbox_parked"),
    ):
        found = explained(engine, next(plan))
        assert "Seq Scan" not in found, found
        assert index in found, found
    figures = stats_plan("postgresql")
    next(figures)
    assert "fencing_outbox_parked" in explained(engine, figures.send([(0, 0, None, None, 0)]))
    assert "fencing_outbox_held" in explained(engine, figures.send([(0,)]))


def test_no_figure_reads_what_was_sent(engine: Engine) -> None:
    """With a sequential scan allowed, two thirds of this table would be worth one."""
    off = Statement("set enable_seqscan = off")
    figures, facts = stats_plan("postgresql"), diagnose_plan("postgresql")
    asked = [next(figures), *(figures.send(rows) for rows in ([(0, 0, None, None, 0)], [(0,)], [], [(0, None)]))]
    asked += [next(facts), *(facts.send(rows) for rows in ([(0,)], [(0, None, None)], [(0,)]))]
    for statement in asked:
        found = explained(engine, statement, off)
        assert "Seq Scan" not in found, found


@pytest.mark.parametrize("state", ["pending", "claimed", "uncertain", "failed", "cancelled", "expired"])
def test_a_list_of_a_rare_state_is_not_looked_for_among_what_was_sent(engine: Engine, state: Any) -> None:
    with engine.begin() as connection:
        connection.execute(text("update fencing_outbox set state = 'sent'"))
        connection.execute(text("analyze fencing_outbox"))
    for before in (None, 10_000):
        found = explained(engine, next(list_plan(state, 50, before=before)))
        assert "fencing_outbox_pkey" not in found, found
        assert "Seq Scan" not in found, found


def test_messages_of_an_order_key_that_wait_are_out_of_the_way(engine: Engine) -> None:
    """A third of the table stands behind one message: worse than any planner expects."""
    first = "(select min(id) from fencing_outbox where state = 'pending' and due_at <= now())"
    with engine.begin() as connection:
        connection.execute(
            text(
                f"update fencing_outbox set order_key = 'one', waits = id <> {first}"
                " where state = 'pending' and due_at <= now()"
            )
        )
        connection.execute(text("analyze fencing_outbox"))
    plan = claim_plan(CLAIM, 50, 60, "postgresql")
    settings = next(plan)
    plan.send([])
    found = explained(engine, plan.send([]), settings, "explain (analyze, costs off)")
    assert "using fencing_outbox_order" in found, found
    assert all(int(line.rpartition(":")[2]) < 50 for line in found.splitlines() if "Rows Removed" in line), found
