"""The audit can only grow; the pruner deletes what is over for longer than it is kept, and nothing else."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.jobs import Hand, Tables, Working, completed, ended, installed_beside
from support.waiting import eventually

from scheduler import Enqueued, Retention, Scheduler
from scheduler._connect import Database, Link
from scheduler._pruner import Pruner
from scheduler._sql import Statements
from scheduler.console.embedded import Postgres

DAY = 86400.0


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_retention")
    postgres.drop_database("scheduler_retention")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("work", lease=30)(print)
        yield app, tables


@pytest.fixture
def hand(tables: Tables) -> Iterator[Hand]:
    one = Hand(tables.dsn, {"work": 30}, schema=tables.schema)
    yield one
    one.close()


@pytest.fixture
def pruner(tables: Tables) -> Iterator[Callable[..., Pruner]]:
    link = Link(Database(tables.dsn), "prune")

    def make(page: int = 1000, **kept: timedelta | None) -> Pruner:
        return Pruner(link, Statements(tables.schema), Retention(**kept), page)

    yield make
    link.close()


def one_of_each(app: Scheduler, hand: Hand) -> dict[str, int]:
    """A job of each fate."""
    app.enqueue_many("work", range(5))
    done, dead, running, cancelled, retried = hand.claim()
    hand.settle(
        completed(done, "result"),
        ended(dead, "dead", "dead", error="e", reason="r"),
        ended(cancelled, "ready", "returned"),
        ended(retried, "ready", "retried", error="e", delay=0.0),
    )
    app.cancel(cancelled.id, reason="x", actor="ann")
    return {
        "completed": done.id,
        "dead": dead.id,
        "leased": running.id,
        "cancelled": cancelled.id,
        "ready": retried.id,
        "later": app.enqueue("work", due_at=datetime.now(UTC) + timedelta(days=3650)).id,
    }


# -- the audit


@pytest.mark.parametrize("table", ["attempt", "act", "forever_key"])
@pytest.mark.parametrize("sql", ["update {t} set {c} = {c}", "delete from {t}", "truncate {t}"])
def test_what_was_done_is_not_written_over(app: Scheduler, tables: Tables, hand: Hand, table: str, sql: str) -> None:
    one_of_each(app, hand)
    app.enqueue("work", key="k", unique="forever")
    before = tables.rows(f"select * from {{s}}.{table}")
    assert before
    column = list(before[0])[-1]
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=rf"{table} is append-only: \w+ is refused"):
        tables.rows(sql.format(t=f"{{s}}.{table}", c=column))
    assert tables.rows(f"select * from {{s}}.{table}") == before


def test_not_even_the_pruner_frees_a_key_or_changes_a_line_of_the_audit(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    one_of_each(app, hand)
    app.enqueue("work", key="k", unique="forever")
    tables.rows("set fencing.pruning = 'on'")
    for sql in ("delete from {s}.forever_key", "update {s}.act set actor = 'bob'", "truncate {s}.attempt"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            tables.rows(sql)
    tables.rows("reset fencing.pruning")


# -- what goes, and what stays


def test_each_state_is_kept_for_its_own_time_and_what_is_not_over_for_ever(
    app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]
) -> None:
    jobs = one_of_each(app, hand)
    one = pruner(completed=timedelta(days=1), cancelled=timedelta(days=10), dead=timedelta(days=100), acts=None)

    def left() -> set[str]:
        there = {job["id"] for job in tables.jobs()}
        return {name for name, number in jobs.items() if number in there}

    assert one.run_through().jobs == 0
    for days, gone in ((2, {"completed"}), (11, {"cancelled"}), (101, {"dead"}), (3000, set())):
        before = left()
        tables.move_clock(days * DAY)
        one.run_through()
        assert before - left() == gone
    assert left() == {"leased", "ready", "later"}
    kept = {row["job_id"] for row in tables.rows("select job_id from {s}.attempt")}
    assert kept == {jobs["ready"]}, "attempts go with their jobs and stay with them"
    assert tables.one("select count(*) from {s}.act") == 1


def test_a_key_that_is_unique_for_ever_outlives_its_job(
    app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]
) -> None:
    number = app.enqueue("work", key="k", unique="forever").id
    hand.complete(hand.claim_one())
    tables.move_clock(1000 * DAY)
    pruner().run_through()
    assert tables.jobs() == []
    assert app.enqueue("work", key="k", unique="forever") == Enqueued(False, number)


def test_a_job_whose_fences_are_still_to_be_raised_stays(
    app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]
) -> None:
    number = app.enqueue("work").id
    hand.claim_one()
    stranger = Scheduler(tables.dsn, schema=tables.schema)
    assert not stranger.cancel(number, reason="x", actor="ann").fenced
    stranger.close()
    tables.move_clock(1000 * DAY)
    one = pruner()
    one.run_through()
    assert len(tables.jobs()) == 1
    tables.rows("update {s}.revocation set raised_at = now()")
    one.run_through()
    assert tables.jobs() == tables.rows("select * from {s}.revocation") == []


def test_a_replayed_job_is_not_over(app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]) -> None:
    number = app.enqueue("work").id
    hand.settle(ended(hand.claim_one(), "dead", "dead", error="e", reason="r"))
    tables.move_clock(1000 * DAY)
    app.replay(number, reason="x", actor="ann")
    pruner().run_through()
    assert tables.job(number)["status"] == "ready"


def test_a_job_that_runs_again_while_it_is_being_pruned_stays(
    app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]
) -> None:
    """The pruner has read that it died long ago; then it is replayed, claimed and cancelled, with fences to raise."""
    number = one_of_each(app, hand)["dead"]
    tables.rows("update {s}.job set finished_at = finished_at - interval '100 days' where status = 'dead'")
    turn = "current_setting('application_name') = 'fencing prune'"
    tables.set_clock(
        f"case when {turn} and pg_advisory_xact_lock_shared(4711) is null then null else clock_timestamp() end"
    )
    with psycopg.connect(tables.dsn) as between, ThreadPoolExecutor() as pool:
        between.execute("select pg_advisory_xact_lock(4711)")
        pruning = pool.submit(pruner(acts=None).run_once)
        try:
            tables.wait_for_session("prune", waiting=True)
            app.replay(number, reason="x", actor="ann")
            assert number in {job.id for job in hand.claim()}
            other = Scheduler(tables.dsn, schema=tables.schema)
            assert not other.cancel(number, reason="x", actor="bob").fenced
            other.close()
        finally:
            between.commit()
        pruning.result(60)
    assert tables.job(number)["status"] == "cancelled"
    assert len(tables.attempts(number)) == 2
    app.run_until_idle()
    assert tables.one("select count(*) from {s}.revocation where raised_at is null") == 0


def test_a_lease_that_is_taken_again_while_it_is_being_pruned_stays(
    app: Scheduler, tables: Tables, pruner: Callable[..., Pruner]
) -> None:
    tables.rows(
        "insert into {s}.lease values ('one', 'gone', 1, 'x', now() - interval '3 days', now() - interval '2 days')"
    )
    turn = "current_setting('application_name') = 'fencing prune'"
    tables.set_clock(
        f"case when {turn} and pg_advisory_xact_lock_shared(4712) is null then null else clock_timestamp() end"
    )
    only_leases = dict.fromkeys(("completed", "cancelled", "dead", "acts", "occurrences"))
    with psycopg.connect(tables.dsn) as between, ThreadPoolExecutor() as pool:
        between.execute("select pg_advisory_xact_lock(4712)")
        pruning = pool.submit(pruner(**only_leases).run_once)
        try:
            tables.wait_for_session("prune", waiting=True)
            held = app.lease("one", ttl=300)
            token = held.__enter__().token
        finally:
            between.commit()
        pruning.result(60)
    assert [row["token"] for row in tables.rows("select * from {s}.lease")] == [token.value]
    held.__exit__(None, None, None)


def test_the_audit_of_people_and_old_leases_go_by_their_age(
    app: Scheduler, tables: Tables, pruner: Callable[..., Pruner]
) -> None:
    app.cancel(app.enqueue("work").id, reason="x", actor="ann")
    with app.lease("released", ttl=5):
        pass
    lease = app.lease("held", ttl=30)
    token = lease.__enter__().token
    tables.move_clock(5 * DAY)
    app.bury(app.enqueue("work").id, reason="x", actor="ann")
    done = pruner(acts=timedelta(days=3)).run_through()
    assert done.acts == 1
    assert [act["kind"] for act in tables.rows("select * from {s}.act")] == ["job buried"]
    assert tables.rows("select * from {s}.lease") == []
    with app.lease("held", ttl=30) as next_one:
        assert next_one.token > token
    lease.__exit__(None, None, None)


def test_the_ledger_is_pruned_behind_its_cursor_alone_and_its_schedule_remembers(
    app: Scheduler, tables: Tables, pruner: Callable[..., Pruner]
) -> None:
    """procrastinate (measured): ledger rows deleted, an occurrence was made twice."""
    app.schedule("hourly", "0 * * * *", tz="UTC", task="work")
    app.sync_schedules()
    tables.move_clock(3 * 3600)
    app.run_until_idle()
    old = tables.occurrences("hourly")
    assert len(old) == 3
    cursor = tables.schedule("hourly")["materialised_until"]
    tables.rows("update {s}.schedule set materialised_until = %(due)s", due=old[2]["due_at"])
    one = pruner(occurrences=timedelta(days=2), completed=None)
    tables.move_clock(10 * DAY)
    assert one.run_through().occurrences == 2
    assert [row["due_at"] for row in tables.occurrences("hourly")] == [old[2]["due_at"]]
    assert tables.schedule("hourly")["ledger_from"] == old[1]["due_at"] + timedelta(microseconds=1)
    tables.rows("update {s}.schedule set materialised_until = %(cursor)s", cursor=cursor)
    one.run_through()
    app.run_until_idle()
    made = [job["due_at"] for job in tables.jobs()]
    assert len(made) == len(set(made)), "no occurrence is made again"


def test_for_ever_is_for_ever(app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]) -> None:
    one_of_each(app, hand)
    tables.move_clock(3000 * DAY)
    before = tables.jobs()
    pruner(completed=None, cancelled=None, dead=None, acts=None, occurrences=None).run_through()
    assert tables.jobs() == before
    assert tables.one("select count(*) from {s}.act") == 1


# -- how


def test_a_pass_goes_page_by_page_and_remembers_its_place_over_a_restart(
    app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]
) -> None:
    app.enqueue_many("work", range(25))
    hand.settle(*map(completed, hand.claim()))
    kept = app.enqueue("work").id
    tables.move_clock(1000 * DAY)
    first = pruner(page=10)
    assert first.run_once() == 0, "at once again: there was much to delete"
    assert first.pruned.jobs == 10
    assert tables.one("select job_after from {s}.pruning") == 10
    second = pruner(page=10)
    second.run_once()
    assert second.pruned.jobs == 10
    second.run_through()
    assert [job["id"] for job in tables.jobs()] == [kept]
    assert tables.one("select job_after from {s}.pruning") == 0


def test_a_pass_ends_at_the_first_page_that_is_too_young(
    app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]
) -> None:
    app.enqueue_many("work", range(20))
    one = pruner(page=10)
    assert one.run_once() is None
    assert tables.one("select job_after from {s}.pruning") == 0


def test_of_many_one_prunes_at_a_time(
    app: Scheduler, tables: Tables, hand: Hand, pruner: Callable[..., Pruner]
) -> None:
    app.enqueue("work")
    hand.complete(hand.claim_one())
    tables.move_clock(1000 * DAY)
    with psycopg.connect(tables.dsn) as other:
        other.execute(f"select from {tables.schema}.pruning for update".encode())
        assert pruner().run_once() is None
        assert len(tables.jobs()) == 1
    pruner().run_once()
    assert tables.jobs() == []


def test_workers_prune_by_themselves(database: str) -> None:
    with installed_beside(database) as (plain, tables):
        app = Scheduler(database, tables.schema, retention=Retention(completed=timedelta(0)))
        app.task("work")(print)
        app.enqueue("work")
        app.run_until_idle()
        assert len(tables.jobs()) == 1, "run_until_idle() leaves everything to be looked at"
        with Working(app, concurrency=1):
            eventually(lambda: not tables.jobs(), "it is pruned")
        assert app.prune().jobs == 0
        app.close()
        assert plain is not app


@pytest.mark.parametrize(
    "wrong",
    [
        {"completed": 7},
        {"dead": timedelta(days=-1)},
        {"occurrences": timedelta(hours=47)},
        {"acts": timedelta(days=9999)},
    ],
)
def test_a_retention_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(wrong))}="):
        Retention(**wrong)
    with pytest.raises(TypeError, match="retention="):
        Scheduler(retention=7)  # type: ignore[arg-type]
