"""What people do to messages: each act is allowed where it makes sense, names who and why, and ends a relay's hold."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import create_async_engine
from support.outbox import mail, outbox_engine, recipients, row

from adapters.email import ActRefusedError, Email, Item, Outbox, Stats, UnknownMessageError
from adapters.email._claim import Claim
from adapters.email._claims import claim_plan
from adapters.email._hold import Database
from adapters.email._settle import dispatch_plan
from adapters.email._states import STATES, TRANSITIONS, State, targets
from fencing import Token
from fencing.errors import KeyConflictError
from scheduler.console.embedded import Postgres

OUTBOX = Outbox(from_="sender@example.org")
WHO: dict[str, Any] = {"actor": "ann", "reason": "asked by the customer"}


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def engine(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    pg_names: Iterator[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    name = next(pg_names)
    made = outbox_engine(request.param, postgres.create_database(name), tmp_path_factory.mktemp("people"))
    yield made
    made.dispose()
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def key(engine: Engine, numbers: Iterator[int]) -> str:
    """A message of two recipients, waiting."""
    name = f"k{next(numbers)}"
    with engine.begin() as tx:
        OUTBOX.put(tx, mail(to=["one@example.org", "two@example.org"]), key=name)
    return name


def bring(engine: Engine, key: str, state: State, **columns: Any) -> None:
    """Put the row into a state, with recipients that fit."""
    clock = "now()" if engine.dialect.name == "postgresql" else "'2026-01-31 12:00:00.000000'"
    until = clock if state in ("claimed", "dispatching") else "null"
    states = {"sent": "sent", "failed": "failed", "uncertain": "uncertain"}
    more = "".join(f", {name} = :{name}" for name in columns)
    with engine.begin() as tx:
        tx.execute(
            text(
                f"update fencing_outbox set state = :state, owner = 'relay', lease_until = {until}{more}"
                " where key = :key"
            ),
            {"state": state, "key": key, **columns},
        )
        tx.execute(
            text(
                "update fencing_outbox_recipient set state = :state"
                " where outbox_id = (select id from fencing_outbox where key = :key)"
            ),
            {"state": states.get(state, "pending"), "key": key},
        )


def last_event(engine: Engine, key: str) -> tuple[str, str, str, str | None]:
    with engine.connect() as tx:
        event = OUTBOX.show(tx, key).events[-1]
    return event.kind, event.actor, event.outcome, event.reason


@pytest.mark.parametrize("verb", ["requeue", "cancel", "resolve"])
@pytest.mark.parametrize("state", STATES)
def test_an_act_is_allowed_where_the_states_say_so(engine: Engine, key: str, verb: str, state: State) -> None:
    bring(engine, key, state)
    before = row(engine, key)
    arguments = ("sent",) if verb == "resolve" else ()
    allowed = targets(verb, state)
    if not allowed:
        with engine.begin() as tx, pytest.raises(ActRefusedError, match=state) as refused:
            getattr(OUTBOX, verb)(tx, key, *arguments, **WHO)
        assert (refused.value.key, refused.value.state) == (key, state)
        assert row(engine, key) == before
        return
    with engine.begin() as tx:
        act = getattr(OUTBOX, verb)(tx, key, *arguments, **WHO)
    after = row(engine, key)
    assert (act.before, act.after) == (state, after["state"])
    assert act.after in allowed
    assert after["owner"] is None  # no relay's claim matches it any more
    assert last_event(engine, key) == (verb, "ann", act.after, "asked by the customer")


def test_the_states_of_the_table_and_of_the_rules_are_the_same() -> None:
    assert {change.source for change in TRANSITIONS} | {change.target for change in TRANSITIONS} == set(STATES)


@pytest.mark.parametrize(
    ("resolution", "state", "served"),
    [("sent", "sent", "sent"), ("not-sent", "pending", "pending"), ("failed", "failed", "failed")],
)
def test_a_person_ends_the_doubt(engine: Engine, key: str, resolution: Any, state: str, served: str) -> None:
    bring(engine, key, "uncertain")
    with engine.begin() as tx:
        OUTBOX.resolve(tx, key, resolution, **WHO)
    assert row(engine, key)["state"] == state
    assert set(recipients(engine, key).values()) == {served}


def test_recipients_that_were_refused_for_now_are_served_after_the_doubt_has_ended(engine: Engine, key: str) -> None:
    bring(engine, key, "uncertain")
    with engine.begin() as tx:
        tx.execute(
            text(
                "update fencing_outbox_recipient set state = 'pending' where address = 'two@example.org'"
                " and outbox_id = (select id from fencing_outbox where key = :key)"
            ),
            {"key": key},
        )
        assert OUTBOX.resolve(tx, key, "sent", **WHO).after == "pending"
    assert recipients(engine, key) == {"one@example.org": "sent", "two@example.org": "pending"}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("dispatching", "at this moment: it may arrive twice"),
        ("uncertain", "may arrive twice"),
        ("sent", "once more"),
        ("failed", ""),
    ],
)
def test_a_requeue_warns_of_what_it_may_cause_and_the_audit_keeps_it(
    engine: Engine, key: str, state: State, words: str
) -> None:
    bring(engine, key, state)
    with engine.begin() as tx:
        act = OUTBOX.requeue(tx, key, **WHO)
        told = OUTBOX.show(tx, key).events[-1].detail
    assert words in act.warning
    assert act.warning in told
    assert set(recipients(engine, key).values()) == {"pending"}
    assert bool(row(engine, key)["in_doubt"]) == (state in ("dispatching", "uncertain"))
    # Under the key of an earlier sending a provider would take it for a repetition; of a doubt it should.
    assert row(engine, key)["generation"] == (1 if state in ("sent", "failed") else 0)


def test_a_requeue_of_a_dispatch_in_flight_ends_its_relays_hold(engine: Engine, key: str) -> None:
    database = Database(engine)
    claim = Claim("relay", Token(1, "test", "l1"), 60)
    batch = database.run(lambda dialect: claim_plan(claim, 1000, 60, dialect))
    number = next(found.id for found in batch.rows if found.key == key)
    with engine.begin() as tx:
        OUTBOX.requeue(tx, key, **WHO)
    assert database.run(lambda dialect: dispatch_plan(claim, {number: {}}, dialect)) == {number: "lost"}
    with engine.begin() as tx:  # the other rows of this module, taken along
        for found in batch.rows:
            if found.key != key:
                OUTBOX.requeue(tx, found.key, **WHO)


def test_a_requeue_ends_no_doubt(engine: Engine, key: str) -> None:
    """It says nothing about the earlier hand-over, so the message may have arrived whatever comes of the next one."""
    bring(engine, key, "uncertain", in_doubt=True)
    with engine.begin() as tx:
        OUTBOX.requeue(tx, key, **WHO)
        act = OUTBOX.cancel(tx, key, **WHO)
        assert (act.after, "may have sent it" in act.warning) == ("uncertain", True)
        assert set(recipients_of(OUTBOX.show(tx, key))) == {"uncertain"}
        OUTBOX.resolve(tx, key, "not-sent", **WHO)
        assert OUTBOX.cancel(tx, key, **WHO).after == "cancelled"


def recipients_of(details: Any) -> list[str]:
    return [recipient.state for recipient in details.recipients]


def test_an_expired_message_that_is_requeued_has_no_end_any_more(engine: Engine, key: str) -> None:
    bring(engine, key, "expired", expires_at="2026-01-31 12:00:00.000000")
    with engine.begin() as tx:
        OUTBOX.requeue(tx, key, **WHO)
    assert row(engine, key)["expires_at"] is None


@pytest.mark.parametrize(("state", "verb"), [("failed", "requeue"), ("uncertain", "requeue"), ("uncertain", "resolve")])
def test_what_a_person_has_sent_does_not_expire_for_an_end_that_has_passed(
    engine: Engine, key: str, state: State, verb: str
) -> None:
    for number, (end, kept) in enumerate([("2026-01-31 12:00:00.000000", False), ("2999-01-31 12:00:00.000000", True)]):
        one = f"{key}/{number}"
        with engine.begin() as tx:
            OUTBOX.put(tx, mail(), key=one)
        bring(engine, one, state, expires_at=end)
        with engine.begin() as tx:
            if verb == "requeue":
                OUTBOX.requeue(tx, one, **WHO)
            else:
                OUTBOX.resolve(tx, one, "not-sent", **WHO)
        assert (row(engine, one)["state"], row(engine, one)["expires_at"] is not None) == ("pending", kept)


def test_a_message_in_doubt_that_is_cancelled_is_uncertain(engine: Engine, key: str) -> None:
    bring(engine, key, "pending", in_doubt=True)
    with engine.begin() as tx:
        act = OUTBOX.cancel(tx, key, **WHO)
    assert (act.after, row(engine, key)["state"]) == ("uncertain", "uncertain")
    assert "may have sent it" in act.warning
    assert set(recipients(engine, key).values()) == {"uncertain"}


def test_bodies_are_purged_and_the_key_goes_on_to_stand_for_the_message(engine: Engine, key: str) -> None:
    bring(engine, key, "sent")
    purge: dict[str, Any] = {"older_than": timedelta(0), "states": ["sent"], "start": row(engine, key)["id"] - 1, **WHO}
    with engine.begin() as tx:
        nobody = {name: value for name, value in purge.items() if name not in WHO}
        looked = OUTBOX.purge(tx, dry_run=True, **nobody)
        with pytest.raises(ValueError, match="actor is empty"):
            OUTBOX.purge(tx, **nobody)
        assert OUTBOX.message(tx, key) is not None
        taken = OUTBOX.purge(tx, **purge)
        assert taken == looked
        assert (taken.rows, taken.more) == (1, None)
        assert OUTBOX.message(tx, key) is None
        assert OUTBOX.purge(tx, **purge).rows == 0
        assert not OUTBOX.put(tx, mail(to=["one@example.org", "two@example.org"]), key=key).created
        with pytest.raises(ActRefusedError, match="purged"):
            OUTBOX.requeue(tx, key, **WHO)
    assert last_event(engine, key)[:3] == ("purge", "ann", "sent")
    with engine.begin() as tx:
        assert OUTBOX.purge(tx, what="rows", **purge).rows == 1
        assert OUTBOX.show(tx, key) is None


def test_nothing_that_is_waiting_or_uncertain_or_young_is_purged(engine: Engine, key: str) -> None:
    with engine.begin() as tx:
        for state in ("pending", "uncertain"):
            with pytest.raises(ValueError, match="at their end"):
                OUTBOX.purge(tx, older_than=timedelta(0), states=[state], **WHO)
    start = row(engine, key)["id"] - 1
    for state in ("uncertain", "sent"):
        bring(engine, key, state)
        with engine.begin() as tx:
            assert OUTBOX.purge(tx, older_than=timedelta(days=1), start=start, **WHO).rows == 0


def test_acts_want_a_name_and_a_reason_and_a_message(engine: Engine, key: str) -> None:
    with engine.begin() as tx:
        with pytest.raises(ValueError, match="actor is empty"):
            OUTBOX.cancel(tx, key, actor=" ", reason="r")
        with pytest.raises(ValueError, match="reason is empty"):
            OUTBOX.requeue(tx, key, actor="ann", reason="")
        with pytest.raises(ValueError, match="'maybe'"):
            OUTBOX.resolve(tx, key, "maybe", **WHO)  # type: ignore[arg-type]
        with pytest.raises(UnknownMessageError, match="'nobody'"):
            OUTBOX.cancel(tx, "nobody", **WHO)
        assert OUTBOX.show(tx, "nobody") is None


def test_the_audit_is_append_only_in_the_database_itself(engine: Engine, key: str) -> None:
    for statement in ("update fencing_outbox_event set actor = 'nobody'", "delete from fencing_outbox_event"):
        with engine.connect() as tx, pytest.raises(DatabaseError, match="append-only"):
            tx.execute(text(statement))


def test_lists_are_narrowed_and_paged(engine: Engine, numbers: Iterator[int]) -> None:
    tenant = f"tenant{next(numbers)}"
    keys = [f"{tenant}/{number}" for number in range(3)]
    with engine.begin() as tx:
        for name in keys:
            OUTBOX.put(tx, mail(), key=name, tenant=tenant, order_key=f"order/{tenant}")
        newest = OUTBOX.list(tx, tenant=tenant, limit=2)
        rest = OUTBOX.list(tx, order_key=f"order/{tenant}", before=newest[-1].id)
    assert [entry.key for entry in (*newest, *rest)] == keys[::-1]
    assert newest[0].tenant == tenant


def test_stats_tell_what_is_not_finished(pg_dsn: str, tmp_path: Path) -> None:
    made = outbox_engine("postgresql", pg_dsn, tmp_path)
    with made.begin() as tx:
        for number in range(4):
            OUTBOX.put(tx, mail(number), key=f"k{number}")
        assert OUTBOX.stats(tx).pending == 4
    bring(made, "k1", "uncertain", transport="smtp://a:25")
    bring(made, "k2", "dispatching", transport="smtp://a:25")
    bring(made, "k3", "sent", transport="smtp://a:25")
    with made.connect() as tx:
        stats = OUTBOX.stats(tx)
    assert isinstance(stats, Stats)
    assert (stats.pending, stats.due, stats.uncertain, stats.dispatching, stats.over_lease) == (1, 1, 1, 1, 1)
    assert stats.by_transport == {"smtp://a:25": {"uncertain": 1, "dispatching": 1}}
    made.dispose()


def test_put_many_is_all_or_nothing(engine: Engine, numbers: Iterator[int]) -> None:
    prefix = f"many{next(numbers)}"
    items = [Item(message=mail(number), key=f"{prefix}/{number}") for number in range(3)]
    with engine.begin() as tx:
        assert [put.created for put in OUTBOX.put_many(tx, items)] == [True] * 3
        again = OUTBOX.put_many(tx, [*items, Item(message=mail(3), key=f"{prefix}/3"), items[0]])
        assert [put.created for put in again] == [False, False, False, True, False]
        other = Item(message=Email(to="x@example.org", subject="Other", text=""), key=f"{prefix}/0")
        with pytest.raises(KeyConflictError, match="subject"):
            OUTBOX.put_many(tx, [Item(message=mail(4), key=f"{prefix}/4"), other])
        assert OUTBOX.show(tx, f"{prefix}/4") is None
        with pytest.raises(ValueError, match=r"items\[1\]: priority"):
            OUTBOX.put_many(tx, [items[0], Item(message=mail(5), key="x", priority=1 << 20)])
        assert OUTBOX.put_many(tx, []) == []
    assert recipients(engine, f"{prefix}/2") == {"reader2@example.org": "pending"}


def test_acts_and_put_many_are_awaited_on_an_async_connection(pg_dsn: str, tmp_path: Path) -> None:
    made = outbox_engine("postgresql", pg_dsn, tmp_path)

    async def work() -> None:
        engine = create_async_engine(made.url)
        async with engine.begin() as tx:
            await OUTBOX.put_many(tx, [Item(message=mail(1), key="a"), Item(message=mail(2), key="b")])
            assert (await OUTBOX.cancel(tx, "a", **WHO)).after == "cancelled"
            assert (await OUTBOX.show(tx, "b")).entry.state == "pending"
        await engine.dispose()

    asyncio.run(work())
    assert row(made, "a")["state"] == "cancelled"
    made.dispose()


def test_messages_of_one_order_key_are_put_one_after_the_other(pg_dsn: str, tmp_path: Path) -> None:
    made = outbox_engine("postgresql", pg_dsn, tmp_path)
    impatient = create_engine(made.url, connect_args={"options": "-c lock_timeout=200ms"})
    with made.begin() as first:
        OUTBOX.put(first, mail(1), key="a", order_key="customer/1")
        with impatient.begin() as second:
            OUTBOX.put(second, mail(2), key="b", order_key="customer/2")
        with impatient.connect() as third, pytest.raises(Exception, match="lock timeout"):
            OUTBOX.put(third, mail(3), key="c", order_key="customer/1")
    impatient.dispose()
    made.dispose()
