"""Cancelling and burying from outside: waiting jobs end, running ones are taken away and their old writes refused."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from support.jobs import Hand, Tables, Working, completed, ended, installed_beside
from support.sql_doors import sync_url
from support.waiting import eventually

from adapters.sql import SqlGuard, create_all
from fencing import Token, errors, fenced_write, raise_fence, read_mark
from scheduler import Job, Retry, Scheduler
from scheduler._connect import Database, Link
from scheduler._doctor import diagnose
from scheduler._held import Work
from scheduler._limiter import Limiter
from scheduler._raiser import Raiser
from scheduler._sql import Statements
from scheduler._store import Settled
from scheduler.console.embedded import Postgres
from scheduler.errors import JobStateError, UnknownJobError

LEASE = 30.0


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_revoke")
    postgres.drop_database("scheduler_revoke")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    """The application's own database, which knows nothing of the scheduler's."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def ground(database: str, shop: sqlalchemy.Engine) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("plain", lease=LEASE)(print)
        app.task("work", lease=LEASE, fences=lambda job: [(shop, f"invoice/{job.args}")])(print)
        yield app, tables


@pytest.fixture
def hand(tables: Tables) -> Iterator[Hand]:
    one = Hand(tables.dsn, {"work": LEASE, "plain": LEASE}, schema=tables.schema)
    yield one
    one.close()


def acts(tables: Tables, number: int) -> list[dict[str, Any]]:
    return tables.rows("select * from {s}.act where subject = %(subject)s order by id", subject=f"job/{number}")


def revocations(tables: Tables) -> list[dict[str, Any]]:
    return tables.rows("select * from {s}.revocation order by token")


# -- the act


@pytest.mark.parametrize(("verb", "state", "told"), [("cancel", "cancelled", "cancelled"), ("bury", "dead", "buried")])
def test_a_waiting_job_ends_and_the_audit_says_who_and_why(
    app: Scheduler, tables: Tables, hand: Hand, verb: str, state: str, told: str
) -> None:
    number = app.enqueue("work", 1).id
    assert getattr(app, verb)(number, reason="a duplicate", actor="ann") == (number, "ready", state, True)
    row = tables.job(number)
    assert (row["status"], row["reason"]) == (state, "a duplicate")
    assert row["finished_at"] is not None
    assert hand.claim() == []
    (act,) = acts(tables, number)
    assert (act["kind"], act["actor"], act["reason"]) == (f"job {told}", "ann", "a duplicate")
    assert act["before"]["status"] == "ready"
    assert act["after"] == {"status": state}
    assert revocations(tables) == []


@pytest.mark.parametrize(("verb", "state", "told"), [("cancel", "cancelled", "cancelled"), ("bury", "dead", "buried")])
def test_a_running_job_is_taken_away_under_a_new_token_and_nothing_of_its_holder_counts_any_more(
    app: Scheduler, tables: Tables, hand: Hand, shop: sqlalchemy.Engine, verb: str, state: str, told: str
) -> None:
    number = app.enqueue("work", 1).id
    job = hand.claim_one()
    assert getattr(app, verb)(number, reason="wrong customer", actor="ann") == (number, "leased", state, True)
    row = tables.job(number)
    assert (row["status"], row["reason"], row["owner"], row["lease_until"]) == (state, "wrong customer", None, None)
    assert row["token"] > job.token
    assert read_mark(shop, "invoice/1").token.value == row["token"]
    assert hand.renew(job) == {}
    assert hand.complete(job) is Settled.LOST
    assert hand.settle(ended(job, "ready", "retried", error="x", delay=0.0)) == [Settled.LOST]
    (attempt,) = tables.attempts(number)
    assert (attempt["token"], attempt["owner"], attempt["outcome"]) == (job.token, "hand", told)
    assert attempt["error"] == f"{told} by ann: wrong customer"
    (act,) = acts(tables, number)
    assert (act["before"]["status"], act["before"]["token"], act["before"]["owner"]) == ("leased", job.token, "hand")
    assert act["after"] == {"status": state, "token": row["token"]}
    (open_,) = revocations(tables)
    assert (open_["revoked"], open_["token"]) == (job.token, row["token"])
    assert open_["raised_at"] is not None


@pytest.mark.parametrize(("verb", "state", "told"), [("cancel", "cancelled", "cancelled"), ("bury", "dead", "buried")])
def test_a_job_that_waits_since_its_holders_lease_ran_out_is_taken_from_that_holder_too(
    app: Scheduler, tables: Tables, hand: Hand, shop: sqlalchemy.Engine, verb: str, state: str, told: str
) -> None:
    number = app.enqueue("work", 1).id
    job = hand.claim_one()
    token = Token(job.token, job.issuer, job.lineage)
    with shop.begin() as tx, fenced_write(tx, "invoice/1", token=token):
        pass
    tables.move_clock(LEASE + 1)
    assert [one.id for one in hand.rescue()] == [number]
    assert getattr(app, verb)(number, reason="wrong customer", actor="ann") == (number, "ready", state, True)
    with pytest.raises(errors.StaleTokenError), shop.begin() as tx, fenced_write(tx, "invoice/1", token=token):
        pass
    assert tables.outcomes(number) == ["expired"]
    row = tables.job(number)
    assert (row["status"], row["reason"], row["error"]) == (state, "wrong customer", "lease expired")
    (open_,) = revocations(tables)
    assert (open_["revoked"], open_["token"], open_["outcome"]) == (job.token, row["token"], told)
    assert open_["raised_at"] is not None
    (act,) = acts(tables, number)
    assert (act["before"]["status"], act["after"]) == ("ready", {"status": state, "token": row["token"]})
    app.replay(number, reason="right after all")
    assert hand.claim_one().token > row["token"]


def test_a_job_that_waits_since_its_holder_gave_it_back_has_nobody_to_be_taken_from(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    number = app.enqueue("work", 1).id
    hand.settle(ended(hand.claim_one(), "ready", "retried", error="x", delay=0.0))
    assert app.cancel(number, reason="wrong customer") == (number, "ready", "cancelled", True)
    assert (revocations(tables), tables.job(number)["error"]) == ([], "x")


def test_an_old_holders_write_is_refused_by_the_downstream_after_its_job_was_cancelled(
    app: Scheduler, tables: Tables, shop: sqlalchemy.Engine
) -> None:
    started, go_on, refused = threading.Event(), threading.Event(), []

    @app.task("write", lease=LEASE, fences=lambda job: [(shop, "invoice/7")])
    def write(job: Job) -> None:
        started.set()
        assert go_on.wait(60)
        with pytest.raises(errors.StaleTokenError) as caught, shop.begin() as tx, fenced_write(tx, "invoice/7"):
            pass
        refused.append(caught.value.holder)

    with Working(app, concurrency=1) as working:
        number = app.enqueue("write").id
        assert started.wait(60)
        assert app.cancel(number, reason="stop", actor="ann").fenced
        go_on.set()
        eventually(lambda: refused, "the write was refused")
    assert working.drained().lost == 1
    assert tables.outcomes(number) == ["cancelled"]
    assert tables.job(number)["status"] == "cancelled"


def test_a_running_job_sees_through_its_lease_that_it_was_cancelled_and_why(app: Scheduler, tables: Tables) -> None:
    """With a lease of minutes: the news comes by itself, not with the next renewal."""
    started, seen = threading.Event(), []

    @app.task("look", lease=3600)
    def look(job: Job) -> None:
        started.set()
        assert job.lease.lost.wait(60)
        with pytest.raises(errors.LeaseLostError) as caught:
            job.lease.ensure()
        seen.append(str(caught.value))

    with Working(app, concurrency=1):
        tables.wait_for_session("listener")
        number = app.enqueue("look").id
        assert started.wait(60)
        app.cancel(number, reason="not needed", actor="ann")
        eventually(lambda: seen, "the handler saw it")
    assert "cancelled by ann: not needed" in seen[0]


def test_without_notifications_the_heart_brings_the_news(app: Scheduler, tables: Tables) -> None:
    started, seen = threading.Event(), []

    @app.task("look", lease=1.0)
    def look(job: Job) -> None:
        started.set()
        assert job.lease.lost.wait(60)
        seen.append(job.lease)

    number = app.enqueue("look").id
    thread = threading.Thread(target=app.run_until_idle)  # it does not listen
    thread.start()
    assert started.wait(60)
    app.cancel(number, reason="not needed", actor="ann")
    thread.join(60)
    with pytest.raises(errors.LeaseLostError):
        seen[0].ensure()


def test_a_cancel_on_a_server_that_has_changed_begins_a_new_lineage_and_fences_the_old_holder(
    app: Scheduler, tables: Tables, hand: Hand, shop: sqlalchemy.Engine
) -> None:
    number = app.enqueue("work", 1).id
    job = hand.claim_one()
    tables.rows("update {s}.issuer set identity = 'another server'")
    assert app.cancel(number, reason="stop", actor="ann").fenced
    mark = read_mark(shop, "invoice/1").token
    assert mark.value > job.token
    assert mark.lineage == tables.one("select lineage from {s}.issuer") != job.lineage


# -- who raises the fences


def raiser(app: Scheduler, tables: Tables) -> Raiser:
    link = Link(Database(tables.dsn), "raise")
    return Raiser(link, Statements(tables.schema), app._tasks, None)


def test_what_one_worker_is_raising_the_others_leave_alone_for_half_a_minute(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    app.enqueue("work", 1)
    job = hand.claim_one()
    stranger = Scheduler(tables.dsn, schema=tables.schema)
    stranger.cancel(job.id, reason="stop", actor="ann")
    stranger.close()

    def due() -> list[int]:
        parameters = {"tasks": ["work"], "batch": 10}
        return [row[0] for row in hand.on("raise").execute(hand.statements["revocations_due"], parameters)]

    assert (due(), due()) == ([job.token], [])
    tables.move_clock(31)
    assert due() == [job.token], "whoever took it may have died"


def test_what_a_canceller_that_knows_no_task_leaves_open_is_raised_by_a_worker(
    app: Scheduler, tables: Tables, hand: Hand, shop: sqlalchemy.Engine
) -> None:
    number = app.enqueue("work", 1).id
    job = hand.claim_one()
    stranger = Scheduler(tables.dsn, schema=tables.schema)
    assert stranger.cancel(number, reason="stop", actor="ann") == (number, "leased", "cancelled", False)
    stranger.close()
    assert read_mark(shop, "invoice/1") is None
    assert hand.complete(job) is Settled.LOST
    app.run_until_idle(queues=["elsewhere"])
    assert revocations(tables)[0]["raised_at"] is not None
    assert read_mark(shop, "invoice/1").token.value == tables.job(number)["token"]


def test_fences_that_cannot_be_raised_now_are_raised_later_and_block_no_others(
    app: Scheduler, tables: Tables, hand: Hand, shop: sqlalchemy.Engine
) -> None:
    down = [True]

    def fences(job: Job) -> Any:
        if down[0] and job.args == "broken":
            raise sqlite3.OperationalError("no answer")
        return [(shop, f"invoice/{job.args}")]

    app.task("flaky", lease=LEASE, fences=fences)(print)
    broken, whole = app.enqueue("flaky", "broken").id, app.enqueue("flaky", "whole").id
    with_flaky = Hand(tables.dsn, {"flaky": LEASE}, schema=tables.schema)
    assert len(with_flaky.claim()) == 2
    with_flaky.close()
    assert app.cancel(broken, reason="stop", actor="ann").fenced is False
    assert app.cancel(whole, reason="stop", actor="ann").fenced is True
    first, second = revocations(tables)
    assert "no answer" in first["error"]
    assert (first["raised_at"], second["error"]) == (None, None)
    down[0] = False
    raiser(app, tables).run_once()
    assert revocations(tables)[0]["raised_at"] is None, "its next try is not due yet"
    tables.move_clock(120)
    raiser(app, tables).run_once()
    assert revocations(tables)[0]["raised_at"] is not None
    assert read_mark(shop, "invoice/broken").token.value == tables.job(broken)["token"]


def test_a_holder_inside_its_transaction_ends_it_first_and_is_shut_out_from_then_on(
    app: Scheduler, tables: Tables, database: str
) -> None:
    """The raised fence waits for it a moment, and is tried again: what it wrote came before the fence."""
    engine = sqlalchemy.create_engine(sync_url(database), poolclass=sqlalchemy.pool.NullPool)
    create_all(engine)
    impatient = SqlGuard(lock_timeout=0.2).on(engine)
    app.task("slow", lease=LEASE, fences=lambda job: [(impatient, tables.schema)])(print)
    number = app.enqueue("slow").id
    one = Hand(tables.dsn, {"slow": LEASE}, schema=tables.schema)
    job = one.claim_one()
    one.close()
    token = Token(job.token, tables.one("select name from {s}.issuer"), job.lineage)
    with engine.begin() as tx, fenced_write(tx, tables.schema, token=token):
        assert app.cancel(number, reason="stop", actor="ann").fenced is False
        assert "ContentionError" in revocations(tables)[0]["error"]
    tables.move_clock(60)
    raiser(app, tables).run_once()
    assert revocations(tables)[0]["raised_at"] is not None
    with pytest.raises(errors.StaleTokenError), engine.begin() as tx, fenced_write(tx, tables.schema, token=token):
        pass
    engine.dispose()


def test_the_doctor_tells_of_fences_that_nobody_raises(app: Scheduler, tables: Tables, hand: Hand) -> None:
    def severity() -> str:
        with Database(tables.dsn).connect("test") as connection:
            found = {one.check: one.severity for one in diagnose(connection, Statements(tables.schema))}
        return found["fences of revoked jobs"]

    number = app.enqueue("plain").id
    hand.claim_one()
    stranger = Scheduler(tables.dsn, schema=tables.schema)
    stranger.cancel(number, reason="stop", actor="ann")
    stranger.close()
    assert severity() == "ok", "not yet"
    tables.move_clock(61)
    assert severity() == "warning"
    raiser(app, tables).run_once()
    assert severity() == "ok"


def test_a_newer_holder_on_the_resource_is_as_good_as_a_raised_fence(
    app: Scheduler, tables: Tables, hand: Hand, shop: sqlalchemy.Engine
) -> None:
    number = app.enqueue("work", 1).id
    hand.claim_one()
    stranger = Scheduler(tables.dsn, schema=tables.schema)
    stranger.cancel(number, reason="stop", actor="ann")
    with stranger.lease("newer", ttl=30) as lease:
        raise_fence(shop, "invoice/1", token=lease)
        raiser(app, tables).run_once()
        assert read_mark(shop, "invoice/1").token == lease.token
    stranger.close()
    assert revocations(tables)[0]["raised_at"] is not None


def test_asynchronous_fences_are_left_to_a_workers_loop(
    app: Scheduler, tables: Tables, shop: sqlalchemy.Engine
) -> None:
    async def fences(job: Job) -> Any:
        return [(shop, "invoice/async")]

    app.task("async", lease=LEASE, fences=fences)(print)
    number = app.enqueue("async").id
    one = Hand(tables.dsn, {"async": LEASE}, schema=tables.schema)
    one.claim_one()
    one.close()
    assert app.cancel(number, reason="stop", actor="ann").fenced is False
    with Working(app, concurrency=1):
        eventually(lambda: revocations(tables)[0]["raised_at"], "the worker raised them")
    assert read_mark(shop, "invoice/async").token.value == tables.job(number)["token"]


# -- what is refused


def test_a_job_that_has_ended_or_never_was_cannot_be_cancelled(app: Scheduler, tables: Tables, hand: Hand) -> None:
    number = app.enqueue("plain").id
    hand.settle(completed(hand.claim_one()))
    before = tables.job(number)
    with pytest.raises(JobStateError, match=f"job {number} is completed already"):
        app.cancel(number, reason="stop", actor="ann")
    with pytest.raises(UnknownJobError, match="there is no job 999"):
        app.cancel(999, reason="stop", actor="ann")
    assert tables.job(number) == before
    assert tables.rows("select * from {s}.act") == []


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda app: app.cancel(1, reason=""), ValueError),
        (lambda app: app.cancel(1, reason="a\x00b"), ValueError),
        (lambda app: app.cancel(1, reason=None), TypeError),
        (lambda app: app.cancel("1", reason="x"), TypeError),
        (lambda app: app.cancel(1, reason="x", actor=""), ValueError),
    ],
)
def test_an_act_needs_a_reason_an_actor_and_a_job(
    app: Scheduler, call: Callable[[Scheduler], Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        call(app)


# -- the run-time limit


def test_an_attempt_over_its_limit_is_taken_away_however_lively_and_its_writes_end(
    app: Scheduler, tables: Tables, shop: sqlalchemy.Engine
) -> None:
    """The handler hangs, its heart beats: another attempt runs meanwhile, and the first one's write is refused."""
    ends: list[str] = []

    @app.task("hang", lease=LEASE, max_runtime=1, fences=lambda job: [(shop, "invoice/9")], retry=Retry(3, base=0))
    def hang(job: Job) -> str:
        if job.attempt > 1:
            return "second"
        assert job.lease.lost.wait(60)
        eventually(lambda: read_mark(shop, "invoice/9").token > job.token, "the fence is raised")
        with pytest.raises(errors.LeaseLostError, match=r"overran by .*run-time limit of 1 s"):
            job.lease.ensure()
        with pytest.raises(errors.StaleTokenError), shop.begin() as tx, fenced_write(tx, "invoice/9"):
            pass
        ends.append("refused")
        return "first"

    number = app.enqueue("hang").id
    counts = app.run_until_idle()
    assert (counts.overran, counts.lost, counts.completed) == (1, 1, 1)
    assert ends == ["refused"]
    assert tables.job(number)["result"] == "second"
    first, second = tables.attempts(number)
    assert (first["outcome"], first["error"]) == ("overran", "over its run-time limit of 1 s")
    assert (second["outcome"], second["attempt"]) == ("completed", 2)
    assert second["token"] > revocations(tables)[0]["token"] > first["token"]


def limiter(app: Scheduler, tables: Tables, told: list[int] | None = None) -> Limiter:
    link = Link(Database(tables.dsn), "limit")
    on_revoked = (told if told is not None else []).append
    return Limiter(link, Statements(tables.schema), "limiter", app._tasks, Work(), on_revoked)


def test_the_last_attempt_over_its_limit_leaves_the_job_dead(app: Scheduler, tables: Tables) -> None:
    app.task("short", lease=LEASE, max_runtime=500, retry=Retry(max_attempts=2, base=0))(print)
    number = app.enqueue("short").id
    one, told = Hand(tables.dsn, {"short": LEASE}, schema=tables.schema), []
    sweep = limiter(app, tables, told)
    for number_of_attempt in (1, 2):
        job = one.claim_one()
        assert job.attempt == number_of_attempt
        sweep.run_once()
        assert tables.job(number)["status"] == "leased", "not yet"
        tables.move_clock(501 * number_of_attempt)
        sweep.run_once()
        assert one.complete(job) is Settled.LOST
        assert told[-1] == job.token
    one.close()
    row = tables.job(number)
    assert (row["status"], row["reason"], row["error"]) == (
        "dead",
        "run-time limit",
        "over its run-time limit of 500 s",
    )
    assert tables.outcomes(number) == ["overran", "overran"]


def test_what_was_over_its_limit_comes_back_after_its_tasks_wait(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.task("short", lease=LEASE, max_runtime=5)(print)
    number = app.enqueue("short").id
    one = Hand(tables.dsn, {"short": LEASE}, schema=tables.schema)
    one.claim_one()
    one.close()
    tables.move_clock(6)
    monkeypatch.setattr(Retry, "delay", lambda _, attempt: 77.0 * attempt)
    limiter(app, tables).run_once()
    (attempt,) = tables.attempts(number)
    assert tables.job(number)["due_at"] - attempt["ended_at"] == timedelta(seconds=77)


def test_a_limit_touches_neither_tasks_without_one_nor_those_that_the_worker_does_not_know(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    app.task("short", lease=LEASE, max_runtime=5)(print)
    plain = app.enqueue("plain").id
    hand.claim_one()
    tables.rows("update {s}.job set claimed_at = claimed_at - interval '1 hour'")
    limiter(app, tables).run_once()
    assert tables.job(plain)["status"] == "leased"
    assert limiter(Scheduler(tables.dsn), tables).interval is None
