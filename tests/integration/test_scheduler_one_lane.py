"""The claim of a worker with one queue, one task and one priority: the same as the general one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.jobs import Hand, Tables, completed, installed_beside

from scheduler import Scheduler, _claimer
from scheduler._claimer import CONTENDED, GUARDED, NO_TURN, Claimer
from scheduler._claiming import CROWD, REFUSALS, Claim
from scheduler._connect import Connection, Database, Link
from scheduler._gate import Gate
from scheduler._held import Work
from scheduler._sql import TURNS, Statements
from scheduler.console.embedded import Postgres
from scheduler.errors import NotMigratedError

DUE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_one_lane")
    postgres.drop_database("scheduler_one_lane")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("work", lease=30.0)(print)
        yield app, tables


@pytest.fixture
def make(tables: Tables) -> Iterator[Callable[..., Hand]]:
    hands: list[Hand] = []

    def hand(**options: Any) -> Hand:
        hands.append(Hand(tables.dsn, {"work": 30.0}, schema=tables.schema, **options))
        return hands[-1]

    yield hand
    for one in hands:
        one.close()


def plain(hand: Hand, most: int = 100) -> list[Any]:
    return hand.claim(most, guarded=False, sweep=False)


def test_tokens_rise_in_run_order_whatever_the_order_of_the_ids(app: Scheduler, make: Callable[..., Hand]) -> None:
    # Neither rising nor falling: each row has to find its own token.
    minutes = [(number * 7) % 31 for number in range(31)]
    for minute in minutes:
        app.enqueue("work", minute, due_at=DUE + timedelta(minutes=minute))
    hand = make()
    jobs = [*plain(hand, 12), *plain(hand)]
    assert [job.args for job in jobs] == sorted(minutes)
    tokens = [job.token for job in jobs]
    assert tokens == sorted(set(tokens))


def test_it_tells_and_writes_the_same_as_the_general_claim(
    app: Scheduler, tables: Tables, make: Callable[..., Hand]
) -> None:
    args = {"text": 'Grüße ☃ \\ "', "list": [1, -2.5, None, True, {"deep": []}], "big": 2**70}
    ids = [app.enqueue("work", args, due_at=DUE, key=key).id for key in ("a", "b")]
    hand = make()
    ((first,), (second,)) = (plain(hand, 1), hand.claim(1))
    assert [first.id, second.id] == ids
    assert first.args == args
    like = {name: getattr(second, name) for name in ("id", "token", "key", "lag", "created_at")}
    assert first._replace(**like) == second
    assert first.lag == pytest.approx(second.lag, abs=60)
    for job in (first, second):
        row = tables.job(job.id)
        assert (row["status"], row["owner"], row["token"], row["lineage"]) == ("leased", "hand", job.token, job.lineage)
        assert (row["attempt"], (row["lease_until"] - row["claimed_at"]).total_seconds()) == (1, 30.0)
        hand.settle(completed(job))
    assert [tables.outcomes(number) for number in ids] == [["completed"], ["completed"]]


def test_a_queue_with_a_limit_gives_it_nothing(app: Scheduler, make: Callable[..., Hand]) -> None:
    app.enqueue("work", 1)
    app.queue("default", limit=1)
    app.sync_queues()
    assert plain(make()) == []


def test_exclusive_jobs_are_passed_over(app: Scheduler, make: Callable[..., Hand]) -> None:
    app.enqueue("work", "exclusive", exclusive="value")
    app.enqueue("work", "ordinary")
    assert [job.args for job in plain(make())] == ["ordinary"]


def test_it_begins_at_the_bound_and_after_a_rest_looks_back_for_what_was_committed_late(
    app: Scheduler, tables: Tables, make: Callable[..., Hand]
) -> None:
    hand = make()
    with psycopg.connect(tables.dsn) as late:
        app.enqueue("work", "late", connection=late)
        app.enqueue("work", "early")
        assert [job.args for job in plain(hand)] == ["early"]
        late.commit()
    assert plain(hand) == [], "the bound is believed: this is what it saves"
    assert [job.args for job in hand.claim(guarded=False, sweep=False, back=60.0)] == ["late"]


def test_what_another_claim_holds_is_skipped_not_waited_for(app: Scheduler, make: Callable[..., Hand]) -> None:
    app.enqueue_many("work", range(6))
    hand, beside = make(), make(owner="beside")
    with hand.on("claim").transaction():
        mine = plain(hand, 4)
        yours = plain(beside)
    assert [job.args for job in mine + yours] == list(range(6))


def test_another_identity_of_the_server_begins_a_new_lineage_also_where_nothing_is_due(
    app: Scheduler, tables: Tables, make: Callable[..., Hand]
) -> None:
    hand = make()
    tables.rows("update {s}.issuer set identity = 'another'")
    lineage = tables.one("select lineage from {s}.issuer")
    assert plain(hand) == []
    assert tables.one("select lineage from {s}.issuer") != lineage
    tables.rows("update {s}.issuer set identity = 'another', lineage = 'old'")
    app.enqueue("work")
    (job,) = plain(hand)
    assert job.lineage == tables.one("select lineage from {s}.issuer") != "old"


def test_an_issuer_that_was_removed_issues_nothing(app: Scheduler, tables: Tables, make: Callable[..., Hand]) -> None:
    app.enqueue("work")
    tables.rows("delete from {s}.issuer")
    with pytest.raises(NotMigratedError, match="issuer was never installed"):
        plain(make())
    assert tables.states() == {"ready": 1}


# -- the turns


@pytest.mark.parametrize("general", [False, True], ids=["one lane", "general"])
def test_where_others_have_all_the_turns_a_claim_takes_nothing_looks_again_and_does_without_in_the_end(
    app: Scheduler, tables: Tables, make: Callable[..., Hand], general: bool
) -> None:
    app.enqueue_many("work", range(6))
    hand, beside = make(), [make(owner=f"beside {number}") for number in range(TURNS)]
    with ExitStack() as claiming:
        for one in beside:
            claiming.enter_context(one.on("claim").transaction())
            assert len(plain(one, 1)) == 1
        for _ in range(REFUSALS):
            assert hand.claim(1, guarded=general, sweep=general) == []
            assert hand.looks_again
            assert hand._claim.crowded
        assert len(hand.claim(1, guarded=general, sweep=general)) == 1, "something else must hold them"
    assert len(hand.claim(guarded=general, sweep=general)) == 1
    assert not hand.looks_again
    assert tables.states() == {"leased": 6}


@pytest.mark.parametrize("sweep", [False, True])
def test_where_something_else_has_all_the_turns_a_worker_finds_out_that_there_is_nothing_to_do(
    app: Scheduler, make: Callable[..., Hand], sweep: bool
) -> None:
    hand = make()
    with ExitStack() as held:
        for number in range(TURNS):
            other = make(owner=f"beside {number}").on("claim")
            held.enter_context(other.transaction())
            assert other.execute(hand.statements["turn"]).fetchone() == (True,)
        for _ in range(REFUSALS):
            assert hand.claim(guarded=sweep, sweep=sweep) == []
            assert hand.looks_again
        assert hand.claim(guarded=sweep, sweep=sweep) == []
        assert (hand.looks_again, hand._claim.refused) == (False, 0)


class Counting:
    """Stands before a connection, and notes the first words of what is asked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.asked: list[str] = []

    def execute(self, text: str, *values: Any, **options: Any) -> Any:
        self.asked.append("claim" if "update" in text else "upcoming" if "upcoming" in text else text.strip()[:13])
        return self._connection.execute(text.encode(), *values, **options)


def test_in_a_crowd_a_worker_asks_for_a_turn_alone_until_it_has_one(app: Scheduler, make: Callable[..., Hand]) -> None:
    app.enqueue_many("work", range(6 + CROWD))
    hand, beside = make(), [make(owner=f"beside {number}") for number in range(TURNS)]
    counting = Counting(hand.on("claim"))

    def claim(**options: Any) -> list[str]:
        counting.asked.clear()
        hand._claim(counting, 1, **{"guarded": False, "sweep": False, **options})  # type: ignore[arg-type]
        return [asked.strip() for asked in counting.asked]

    assert claim() == ["claim"]
    with ExitStack() as claiming:
        for one in beside:
            claiming.enter_context(one.on("claim").transaction())
            plain(one, 1)
        assert len(claim()) == 2, "the claim, and the question why it found nothing"
        (alone,) = claim()
        assert alone.startswith("select (pg_")
        assert claim(sweep=True, guarded=True) == [alone], "a sweep is worth nothing without one"
    for _ in range(CROWD):
        assert claim() == [alone, "claim"]
    assert not hand._claim.crowded
    assert claim() == ["claim"], "the crowd is gone"


@pytest.fixture
def claimer(app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> Iterator[Claimer]:
    """Of a worker that claims one job at a time, and for which no time passes: a sweep is due once."""
    monkeypatch.setattr(_claimer, "lease_clock", lambda: 0.0)
    monkeypatch.setattr(_claimer, "LOOK_BACK", 3600.0)  # however slow the machine is
    statements, link = Statements(tables.schema), Link(Database(tables.dsn), "claim")
    claim = Claim(statements, "me", ["default"], {"work": 30.0})
    gate = Gate(statements, "me", 3600.0)
    yield Claimer(link, claim, Work(), {"work": app._tasks["work"]}, "me", 8, 1, 60.0, gate)
    link.close()


@contextmanager
def without_a_turn(make: Callable[..., Hand]) -> Iterator[None]:
    with ExitStack() as held:
        for number in range(TURNS):
            other = make(owner=f"beside {number}")
            held.enter_context(other.on("claim").transaction())
            other.on("claim").execute(other.statements["turn"])
        yield


def claimed(claimer: Claimer) -> list[Any]:
    return [held.claimed.args for held in claimer._work.waiting]


def test_a_row_that_somebody_holds_locked_does_not_keep_a_worker_from_resting(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several tasks: it sees a due job that it cannot have."""
    monkeypatch.setattr(_claimer.random, "uniform", lambda low, high: high)
    app.task("other")(print)
    app.enqueue("work")
    statements, link = Statements(tables.schema), Link(Database(tables.dsn), "claim")
    claim = Claim(statements, "me", ["default"], {"work": 30.0, "other": 30.0})
    one = Claimer(link, claim, Work(), app._tasks, "me", 8, 100, 60.0, Gate(statements, "me", 3600.0))
    with psycopg.connect(tables.dsn) as person:
        person.execute(f"select from {tables.schema}.job for update".encode())
        waits = [one.run_once() for _ in range(8)]
    assert waits == [0.02, 0.04, 0.08, 0.16, GUARDED, GUARDED, GUARDED, GUARDED]
    one.run_once()
    assert [held.claimed.task for held in one._work.waiting] == ["work"]
    link.close()


def test_a_sweep_that_had_no_turn_is_still_due(app: Scheduler, make: Callable[..., Hand], claimer: Claimer) -> None:
    app.enqueue("work", "usual")
    with without_a_turn(make):
        wait = claimer.run_once()
        assert wait is not None
        assert 0 <= wait <= CONTENDED * NO_TURN
    app.enqueue("work", "urgent", priority=7)  # a priority that nobody knows yet: a sweep finds it
    claimer.run_once()
    assert claimed(claimer) == ["urgent"]


def test_a_worker_that_had_no_turn_looks_back_for_what_was_committed_late(
    app: Scheduler, tables: Tables, make: Callable[..., Hand], claimer: Claimer
) -> None:
    with psycopg.connect(tables.dsn) as late:
        app.enqueue("work", "late", connection=late)
        app.enqueue_many("work", ["early", "last"])
        claimer.run_once()
        late.commit()
    with without_a_turn(make):
        claimer.run_once()
    claimer.run_once()
    assert claimed(claimer) == ["early", "late"], "as after any rest"
