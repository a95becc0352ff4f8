"""A worker on a real server: how handlers end, what is kept of it, and that nothing a handler does stops the others."""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy
from support.jobs import Hand, Tables, Working, installed_beside
from support.waiting import eventually

from fencing import Lease, Token, current_lease
from fencing._lease import holding, lease_clock
from fencing.errors import LeaseLostError
from scheduler import Bury, Job, Retry, RetryIn, Scheduler, _heart, _worker
from scheduler._claimer import Claimer
from scheduler._claiming import Claim
from scheduler._connect import Database, Link
from scheduler._gate import Gate
from scheduler._held import Held, Work
from scheduler._runner import AsyncRunner, Runner
from scheduler._settler import Settler
from scheduler._sql import Statements
from scheduler._store import Claimed, Settlement
from scheduler._tasks import make_task
from scheduler.console.embedded import Postgres
from scheduler.errors import UnknownTaskError

NOW = Retry(max_attempts=3, base=0)  # tries again at once


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_worker")
    postgres.drop_database("scheduler_worker")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as both:
        yield both


def run(app: Scheduler, handler: Callable[[Job], Any], args: Any = None, retry: Retry = NOW) -> int:
    """Run one job by this handler to its end; return its id."""
    app.task("work", retry=retry)(handler)
    number = app.enqueue("work", args).id
    app.run_until_idle()
    return int(number)


# -- how an attempt ends


def test_what_a_handler_leaves_behind_on_its_thread_is_not_the_next_jobs(app: Scheduler) -> None:
    found: list[tuple[Lease, Lease]] = []

    def work(job: Job) -> None:
        found.append((current_lease(), job.lease))
        holding(Lease(Token(1, "shop", "line"), "left", "me", deadline=lease_clock() + 60)).__enter__()

    app.task("work", retry=NOW)(work)
    app.enqueue_many("work", range(30))  # so many that a thread does not rest between them
    app.run_until_idle(concurrency=1)
    assert [found is own for found, own in found] == [True] * 30
    assert {lease.ended for lease, _ in found} == {True}
    assert len({lease.name for lease, _ in found}) == 30


def test_what_was_enqueued_is_read_once_so_that_a_handler_may_change_it(app: Scheduler) -> None:
    seen: list[Any] = []

    def work(job: Job) -> None:
        job.args["n"] += 1
        seen.append(job.args)

    run(app, work, {"n": 1})
    assert seen == [{"n": 2}]


@pytest.mark.parametrize("result", [None, {"n": [1, None]}, 0, False, "", [], "zwei\u00a0Wörter 😀 \\u0000"])
def test_what_a_handler_returns_is_kept(app: Scheduler, tables: Tables, result: object) -> None:
    job = tables.job(run(app, lambda _: result))
    assert (job["status"], job["result"], job["error"]) == ("completed", result, None)


def test_a_handler_sees_its_job(app: Scheduler, tables: Tables) -> None:
    seen: list[Job] = []
    number = run(app, lambda job: seen.append(job), {"n": 1})
    (job,) = seen
    row = tables.job(number)
    assert (job.id, job.task, job.args, job.attempt, job.queue) == (number, "work", {"n": 1}, 1, "default")
    assert (job.due_at, job.key, job.schedule, job.nominal) == (row["due_at"], f"job/{number}", None, None)
    assert (job.token.value, job.token.lineage) == (row["token"], row["lineage"])
    assert job.token.issuer == tables.one("select name from {s}.issuer")
    assert job.lease.ended
    with pytest.raises(LeaseLostError, match="was settled"):
        job.lease.ensure()


def test_a_handler_that_raises_is_tried_again_and_every_error_is_kept(app: Scheduler, tables: Tables) -> None:
    def work(job: Job) -> str:
        if job.attempt < 3:
            raise ValueError(f"failure number {job.attempt}")
        return "at last"

    number = run(app, work)
    job = tables.job(number)
    assert (job["status"], job["attempt"], job["result"]) == ("completed", 3, "at last")
    attempts = tables.attempts(number)
    assert [(one["attempt"], one["outcome"]) for one in attempts] == [(1, "retried"), (2, "retried"), (3, "completed")]
    for one in attempts[:2]:
        assert one["error"].startswith("Traceback")
        assert one["error"].endswith(f"ValueError: failure number {one['attempt']}\n")
    assert len({one["token"] for one in attempts}) == 3


def test_a_handler_that_always_raises_ends_dead_with_every_attempts_error(app: Scheduler, tables: Tables) -> None:
    def work(job: Job) -> None:
        raise ValueError(f"failure number {job.attempt}")

    number = run(app, work)
    job = tables.job(number)
    assert (job["status"], job["reason"], job["attempt"]) == ("dead", "attempts used up", 3)
    assert "failure number 3" in job["error"]
    assert [
        (one["outcome"], f"failure number {n}" in one["error"]) for n, one in enumerate(tables.attempts(number), 1)
    ] == [
        ("retried", True),
        ("retried", True),
        ("dead", True),
    ]


def test_a_handler_may_ask_to_be_tried_later_or_never(app: Scheduler, tables: Tables) -> None:
    number = run(app, lambda _: RetryIn(3600, "the bank is closed"))
    job = tables.job(number)
    assert (job["status"], job["attempt"], job["error"]) == ("ready", 1, "the bank is closed")
    assert timedelta(minutes=59) < job["due_at"] - datetime.now(UTC) <= timedelta(hours=1)
    app.task("bury")(lambda _: Bury("no such customer"))
    buried = app.enqueue("bury").id
    app.run_until_idle()
    job = tables.job(buried)
    assert (job["status"], job["reason"], job["attempt"]) == ("dead", "no such customer", 1)


def test_asking_for_another_try_does_not_get_past_the_last_attempt(app: Scheduler, tables: Tables) -> None:
    number = run(app, lambda _: RetryIn(0, "again"))
    job = tables.job(number)
    assert (job["status"], job["reason"], job["error"], job["attempt"]) == ("dead", "attempts used up", "again", 3)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (object(), "TypeError: the values that the handler of 'work' returned are not JSON"),
        ({1, 2}, "are not JSON"),
        (float("nan"), "are not JSON"),
        ("a\x00b", "hold a NUL character"),
        ("\ud800", "half of a surrogate pair"),
        ("x" * (1 << 20), "bytes of JSON, at most"),
    ],
)
def test_a_result_that_cannot_be_kept_is_a_failed_attempt_with_a_clear_error(
    app: Scheduler, tables: Tables, returned: object, says: str
) -> None:
    number = run(app, lambda _: returned, retry=Retry(max_attempts=1))
    job = tables.job(number)
    assert job["status"] == "dead"
    assert says in job["error"]


class Strange(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this works")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (sqlalchemy.exc.OperationalError("select 1", {}, OSError("gone")), "OperationalError: (builtins.OSError) gone"),
        (Strange(), "Strange"),
        (KeyError(), "KeyError"),
        (ValueError("\n\n  the text  \n"), "ValueError: the text"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_the_log_tells_of_a_failed_attempt_by_the_first_line_of_its_error(
    app: Scheduler, caplog: pytest.LogCaptureFixture, raised: Exception, told: str
) -> None:
    """The last line of SQLAlchemy's is an address of its documentation."""

    def work(_: Job) -> None:
        raise raised

    with caplog.at_level("WARNING", "scheduler"):
        number = run(app, work, retry=Retry(max_attempts=1))
    (line,) = [record.getMessage() for record in caplog.records if "failed:" in record.getMessage()]
    assert line == f"job {number} (work), attempt 1 failed: {told}"


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("NUL \x00 and half a pair \ud800"),
        ValueError("x" * 100_000 + " the end"),
        Strange(),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        MemoryError(),
        ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
    ],
    ids=lambda raised: type(raised).__name__,
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_whatever_a_handler_raises_ends_its_attempt_and_nothing_else(
    app: Scheduler, tables: Tables, raised: BaseException, kind: str
) -> None:
    def work(_: Job) -> None:
        raise raised

    async def work_async(_: Job) -> None:
        raise raised

    async def good(_: Job) -> str:
        return "good"

    app.task("bad", retry=Retry(max_attempts=1))(work if kind == "def" else work_async)
    app.task("good")(good)
    bad, after = app.enqueue("bad").id, app.enqueue("good", priority=-1).id
    counts = app.run_until_idle(concurrency=1)
    assert (counts.dead, counts.completed) == (1, 1)
    job = tables.job(bad)
    assert (job["status"], job["reason"]) == ("dead", "attempts used up")
    assert type(raised).__name__ in job["error"] or "the end" in job["error"]
    assert len(job["error"]) <= 10_000
    assert tables.job(after)["result"] == "good"


def test_a_reason_that_cannot_be_stored_as_it_is_does_not_stop_the_settler(app: Scheduler, tables: Tables) -> None:
    number = run(app, lambda _: Bury("NUL \x00 and half a pair \ud800"))
    assert tables.job(number)["reason"] == "NUL \N{REPLACEMENT CHARACTER} and half a pair \\ud800"


def test_one_settlement_that_the_database_refuses_does_not_keep_the_others(app: Scheduler, tables: Tables) -> None:
    """It runs out and counts as an attempt, so that it ends dead if it is always so."""
    app.task("work", lease=1.5, retry=Retry(max_attempts=2))(lambda job: job.args)
    tables.rows(
        "create function {s}.picky() returns trigger language plpgsql as $$ begin"
        " if new.result = '13' then raise exception data_exception using message = 'unlucky'; end if;"
        " return new; end $$"
    )
    tables.rows("create trigger picky before update on {s}.job for each row execute function {s}.picky()")
    app.enqueue_many("work", range(20))
    with Working(app):
        eventually(lambda: tables.states() == {"completed": 19, "dead": 1}, "all but one are completed")
    (dead,) = [job for job in tables.jobs() if job["status"] == "dead"]
    assert (dead["args"], dead["reason"], dead["attempt"]) == (13, "lease expired", 2)


def test_a_fault_outside_the_handler_costs_the_attempt_and_not_the_thread(app: Scheduler, tables: Tables) -> None:
    """Here a filter of the application's own logging, which runs wherever something is logged."""

    met = threading.Event()

    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if "attempt 1 failed" in record.getMessage():
                met.set()
                raise RuntimeError("a broken filter")
            return True

    def work(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError("logged")

    app.task("work", lease=30)(work)
    number = app.enqueue("work").id
    logger, broken = logging.getLogger("scheduler"), Broken()
    logger.addFilter(broken)
    try:
        with Working(app, concurrency=1):
            assert met.wait(60)
            tables.move_clock(31)
            tables.wait_for(number, "completed")
    finally:
        logger.removeFilter(broken)
    assert tables.outcomes(number) == ["expired", "completed"]


def test_async_handlers_share_one_loop_for_the_workers_whole_life(app: Scheduler, tables: Tables) -> None:
    """With a loop for each job, a client that was made at import failed in the second job."""
    loops: list[asyncio.AbstractEventLoop] = []
    made_once = asyncio.Lock()

    async def work(job: Job) -> str:
        async with made_once:
            await asyncio.sleep(0)
            loops.append(asyncio.get_running_loop())
        return threading.current_thread().name

    class Callable_:
        async def __call__(self, job: Job) -> str:
            return await work(job)

    app.task("work")(work)
    app.task("callable")(Callable_())
    app.enqueue_many("work", range(5))
    app.enqueue_many("callable", range(5))
    assert app.run_until_idle().completed == 10
    assert len(set(loops)) == 1
    assert {job["result"] for job in tables.jobs()} == {"fencing-async"}


# -- leases


def test_a_job_of_four_leases_is_claimed_once(app: Scheduler, tables: Tables) -> None:
    """pgqueuer #430, #323: a heartbeat at exactly the lease's interval, the running job was taken over."""

    def work(job: Job) -> bool:
        def extended() -> bool:
            row = tables.job(job.id)
            return bool((row["lease_until"] - row["claimed_at"]).total_seconds() > 4 * 2)

        eventually(extended, "it was renewed over four leases")
        job.lease.ensure()
        return not job.lease.lost.is_set()

    app.task("work", lease=2)(work)
    number = app.enqueue("work").id
    with Working(app), Working(app):
        assert tables.wait_for(number, "completed")["result"] is True
    assert tables.outcomes(number) == ["completed"]


def test_a_handler_that_never_returns_is_renewed_and_reported_as_stuck(
    app: Scheduler, tables: Tables, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_heart, "STUCK_AFTER", 0.5)
    enough = threading.Event()
    app.task("endless", lease=2)(lambda _: enough.wait(60) and None)
    number = app.enqueue("endless").id
    with caplog.at_level(logging.WARNING, "scheduler"), Working(app):
        eventually(lambda: caplog.text.count(f"job {number} (endless) has been running for") >= 2, "it is reported")
        row = tables.job(number)
        assert row["status"] == "leased"
        assert (row["lease_until"] - row["claimed_at"]).total_seconds() > 2
        enough.set()
    assert tables.outcomes(number) == ["completed"]


def test_past_its_deadline_ensure_raises_and_no_handler_starts() -> None:
    """solid_queue #778: work went on unregistered."""
    started: list[Job] = []
    task = make_task("work", started.append, 30, Retry(), None, False, 100)
    claimed = Claimed(7, 107, "line", "work", "default", "null", 0, datetime.now(UTC), 1, 5, 0, None, None, None)
    lease = Lease(Token(107, "shop", "line"), "job/7", "me", deadline=lease_clock() - 0.001)
    work = Work()
    Runner(work, lambda _: set(), AsyncRunner()).run(Held(claimed, task, lease))
    assert started == []
    assert lease.lost.is_set()
    with pytest.raises(LeaseLostError, match="stop here"):
        lease.ensure()
    (settlement,) = work.ended
    assert (settlement.state, settlement.outcome, settlement.uncounted) == ("ready", "returned", 1)


class Parts:
    """A worker's claimer and settler, run step by step on the test's thread."""

    def __init__(self, app: Scheduler, tables: Tables, threads: int) -> None:
        statements, database = Statements(tables.schema), Database(tables.dsn)
        self.work = Work()
        self.links = [Link(database, "claim"), Link(database, "settle")]
        claim = Claim(statements, "me", ["default"], {name: task.lease for name, task in app._tasks.items()})
        self.claimer = Claimer(
            self.links[0], claim, self.work, app._tasks, "me", threads, 100, 3600.0, Gate(statements, "me", 60)
        )
        self.settler = Settler(self.links[1], statements, self.work, "me", lambda: None)

    def close(self) -> None:
        for link in self.links:
            link.close()


def test_a_deadline_is_counted_from_before_the_claim_and_the_renewal_were_sent(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from the answer, a slow one would let the worker believe in a lease that is over in the database."""
    asked: list[float] = []

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            asked.append(lease_clock())
            return function(*args, **options)

        return noted

    monkeypatch.setattr(Claim, "__call__", noting(Claim.__call__))
    monkeypatch.setattr(_heart, "renew", noting(_heart.renew))
    app.task("work", lease=30)(print)
    app.enqueue("work")
    parts = Parts(app, tables, threads=1)
    parts.claimer.run_once()
    (held,) = parts.work.held.values()
    assert held.lease.remaining() > 30 - 15
    assert held.lease._deadline <= asked[0] + 30
    held.lease._deadline -= 20
    parts.links.append(Link(Database(tables.dsn), "heart"))
    _heart.Heart(parts.links[-1], Statements(tables.schema), parts.work, "me").run_once()
    assert held.lease.remaining() > 30 - 15
    assert held.lease._deadline <= asked[-1] + 30
    parts.close()


def test_a_busy_worker_leaves_to_others_what_it_cannot_start(app: Scheduler, tables: Tables) -> None:
    app.task("slow")(print)
    app.enqueue_many("slow", range(6))
    parts = Parts(app, tables, threads=2)
    parts.claimer.run_once()
    assert len(parts.work.waiting) == 2
    parts.work.waiting.clear()  # both threads have taken theirs, and run it
    for _ in range(3):
        parts.claimer.run_once()
    assert tables.states() == {"leased": 2, "ready": 4}
    parts.close()


def test_a_look_from_before_the_last_settlement_does_not_say_that_there_is_nothing_to_do(
    app: Scheduler, tables: Tables
) -> None:
    """What was settled since may have enqueued something; ``run_until_idle`` ended too early."""
    app.task("work")(print)
    app.enqueue("work")
    parts = Parts(app, tables, threads=2)
    parts.claimer.eager = True
    parts.claimer.run_once()
    held = parts.work.waiting.popleft()
    parts.claimer.run_once()
    assert parts.claimer.dry
    app.enqueue("work")  # as the handler does
    parts.work.finish(Settlement(held.claimed.id, held.claimed.token, "completed", "completed"))
    parts.settler.run_once()
    assert parts.work.held == {}
    assert not parts.claimer.dry
    parts.claimer.run_once()
    assert len(parts.work.waiting) == 1
    parts.close()


def test_what_is_settled_between_two_looks_at_a_worker_does_not_pass_for_idle(
    app: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have enqueued something a moment ago."""
    app.task("work")(print)
    worker = app._worker(("default",), 1, None, listen=False)

    def settled_meanwhile(claimer: Claimer) -> bool:
        dry = claimer._dry_at == worker.work.settled
        worker.work.settled += 1
        worker.work.held.clear()
        return dry

    monkeypatch.setattr(Claimer, "dry", property(settled_meanwhile))
    worker._claimer._dry_at = 0
    worker.work.held[1] = None  # type: ignore[assignment]
    assert not worker.idle


# -- no lock and no transaction while a handler runs


def test_while_a_handler_runs_the_scheduler_holds_no_transaction_and_no_lock(app: Scheduler, tables: Tables) -> None:
    """good_job's default: an advisory lock held while running."""
    seen: list[Any] = []

    def work(job: Job) -> None:
        def settled_down() -> bool:
            states = {one["application_name"]: one["state"] for one in tables.sessions()}
            return states.get("fencing claim") == "idle" and "fencing heart" in states

        eventually(settled_down, "the claim is over and the heart beats")
        since = tables.job(job.id)["claimed_at"]
        seen.append(
            tables.rows(
                "select application_name, state, query from pg_stat_activity where datname = current_database()"
                " and application_name like 'fencing %%' and xact_start <= %(since)s",
                since=since,
            )
        )

        def no_lock() -> bool:
            return not tables.rows(
                "select a.application_name, l.locktype from pg_locks l join pg_stat_activity a using (pid)"
                " where a.datname = current_database() and a.application_name like 'fencing %%'"
                " and (l.locktype in ('advisory', 'tuple') or a.state like 'idle in transaction%%')"
            )

        eventually(no_lock, "no lock is held for longer than a statement", timeout=20)

    app.task("work", lease=2)(work)
    number = app.enqueue("work").id
    with Working(app):
        tables.wait_for(number, "completed")
    assert seen == [[]]


def test_sessions_that_are_killed_are_opened_again_and_the_work_goes_on(app: Scheduler, tables: Tables) -> None:
    done = threading.Semaphore(0)
    go_on = threading.Event()
    app.task("work", lease=5)(lambda _: done.release())
    app.task("long", lease=2)(lambda _: go_on.wait(60) and None)
    roles = {"claim", "settle", "heart", "rescue", "materialise", "listener"}

    def seen() -> dict[str, int]:
        return {one["application_name"].removeprefix("fencing "): one["pid"] for one in tables.sessions()}

    with Working(app):
        long = app.enqueue("long").id
        app.enqueue("work")
        assert done.acquire(timeout=60)
        eventually(lambda: roles <= seen().keys(), "every part of the worker is connected")
        before = seen()
        for role in roles:
            tables.rows("select pg_terminate_backend(%(pid)s)", pid=before[role])
        app.enqueue("work")
        assert done.acquire(timeout=60)
        eventually(lambda: all(seen().get(role, before[role]) != before[role] for role in roles), "all came back")
        go_on.set()
        tables.wait_for(long, "completed")
    assert tables.outcomes(long) == ["completed"]
    assert tables.states() == {"completed": 3}


def test_a_job_that_is_enqueued_wakes_the_claimer_also_after_the_listeners_session_was_killed(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polling is the base; here it is put off, so that only the notification can have done it."""
    monkeypatch.setattr(_worker, "POLL", 3600.0)
    app.task("work")(lambda _: None)

    def listening() -> set[int]:
        return {one["pid"] for one in tables.sessions("listener") if one["state"] == "idle"}

    with Working(app):
        before = eventually(listening, "it listens")
        tables.wait_for(app.enqueue("work").id, "completed")
        for pid in before:
            tables.rows("select pg_terminate_backend(%(pid)s)", pid=pid)
        eventually(lambda: listening() - before, "it listens again")
        tables.wait_for(app.enqueue("work").id, "completed")


# -- stopping


def test_heartbeats_go_on_until_the_last_handler_ends_in_a_drain(app: Scheduler, tables: Tables) -> None:
    """db-scheduler #365: they stopped at the signal, and the draining job was taken over."""
    started, go_on = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        started.set()
        go_on.wait(60)
        job.lease.ensure()

    app.task("work", lease=2)(work)
    number = app.enqueue("work").id
    other = Hand(tables.dsn, {"work": 2}, owner="other", schema=tables.schema)
    with Working(app, concurrency=1) as worker:
        assert started.wait(60)
        worker.stop.set()
        stopped_at = tables.one("select clock_timestamp()")
        unstarted = app.enqueue("work").id

        def renewed_since() -> bool:
            assert other.rescue() == []
            return bool((tables.job(number)["lease_until"] - stopped_at).total_seconds() > 2 * 2)

        eventually(renewed_since, "its lease goes by while it drains")
        assert tables.job(unstarted)["status"] == "ready", "nothing new is claimed"
        go_on.set()
        counts = worker.drained()
    assert (counts.claimed, counts.completed, counts.lost) == (1, 1, 0)
    assert tables.outcomes(number) == ["completed"]
    other.close()


def test_what_is_claimed_but_not_started_is_given_back_without_an_attempt(app: Scheduler, tables: Tables) -> None:
    started, go_on = threading.Event(), threading.Event()
    fast = iter(range(400))

    def work(job: Job) -> None:
        if next(fast, None) is None:  # from here on each blocks, and a batch waits behind it
            started.set()
            go_on.wait(60)

    app.task("work")(work)
    app.enqueue_many("work", range(1000))
    with Working(app, concurrency=1, batch=50) as worker:
        assert started.wait(60)
        worker.stop.set()
        eventually(lambda: tables.states().get("leased") == 1, "all but the running one are given back")
        go_on.set()
        counts = worker.drained()
    assert counts.returned >= 1, "some were waiting"
    assert counts.claimed == counts.completed + counts.returned
    assert tables.states() == {"completed": 401, "ready": 599}
    for job in tables.jobs():
        assert job["attempt"] == (1 if job["status"] == "completed" else 0)


def test_a_drain_outlasts_a_failing_database_and_settles_what_ended(app: Scheduler, tables: Tables) -> None:
    started = threading.Event()
    app.task("work")(lambda _: started.set())
    tables.rows("alter table {s}.attempt add constraint shut check (outcome is null) not valid")
    number = app.enqueue("work").id
    with Working(app) as worker:
        assert started.wait(60)
        worker.stop.set()
        assert tables.job(number)["status"] == "leased"
        tables.rows("alter table {s}.attempt drop constraint shut")
        assert worker.drained().completed == 1
    assert tables.job(number)["status"] == "completed"


# -- run_until_idle


def test_what_a_handler_enqueues_is_run_too_however_long_the_handler_took(app: Scheduler, tables: Tables) -> None:
    def first(_: Job) -> None:
        began = tables.one("select clock_timestamp()")

        def looked_again() -> bool:
            return bool(
                tables.rows(
                    "select pid from pg_stat_activity where datname = current_database() and state = 'idle'"
                    " and application_name = 'fencing claim' and query_start > %(began)s",
                    began=began,
                )
            )

        eventually(looked_again, "the claimer looks again and finds nothing")
        app.enqueue("second")

    app.task("first")(first)
    app.task("second")(lambda _: None)
    app.enqueue("first")
    assert app.run_until_idle().completed == 2
    assert tables.states() == {"completed": 2}


def test_leases_that_ran_out_are_taken_back_first(app: Scheduler, tables: Tables) -> None:
    app.task("work")(lambda _: None)
    number = app.enqueue("work").id
    crashed = Hand(tables.dsn, {"work": 30}, owner="crashed", schema=tables.schema)
    crashed.claim_one()
    crashed.close()
    tables.move_clock(31)
    counts = app.run_until_idle()
    assert (counts.rescued, counts.completed) == (1, 1)
    assert tables.outcomes(number) == ["expired", "completed"]


def test_what_is_not_due_or_not_ours_is_left_and_not_waited_for(app: Scheduler, tables: Tables) -> None:
    app.task("work", retry=Retry(base=3600, max_attempts=2))(lambda _: RetryIn(3600))
    app.enqueue("work", due_at=datetime.now(UTC) + timedelta(hours=1))
    app.enqueue("work", queue="other")
    app.enqueue("work")
    counts = app.run_until_idle()
    assert (counts.claimed, counts.retried) == (1, 1)
    assert tables.states() == {"ready": 3}


def test_an_interrupt_leaves_the_rest_to_others(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scheduler import _app

    started, go_on = threading.Event(), threading.Event()

    def work(_: Job) -> None:
        started.set()
        go_on.wait(60)

    def interrupted(*_: object) -> None:
        assert started.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(_app, "wait_until", interrupted)
    app.task("work")(work)
    number = app.enqueue("work").id
    with pytest.raises(KeyboardInterrupt):
        app.run_until_idle()
    assert tables.job(number)["status"] == "leased"
    go_on.set()


# -- what is refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queues": "default"}, "queues= takes a sequence of names"),
        ({"queues": ()}, "queues= takes a sequence of names"),
        ({"queues": [""]}, "a queue's name"),
        ({"concurrency": 0}, "concurrency="),
        ({"concurrency": 2.5}, "concurrency="),
        ({"batch": 0}, "batch="),
    ],
)
def test_a_worker_that_could_not_work_does_not_start(app: Scheduler, options: dict[str, Any], says: str) -> None:
    app.task("work")(print)
    with pytest.raises(ValueError, match=says):
        app.run_worker(**options)


def test_a_worker_without_a_task_does_not_start(app: Scheduler) -> None:
    with pytest.raises(UnknownTaskError, match="nothing to run"):
        app.run_worker()


def test_one_name_means_one_handler(app: Scheduler) -> None:
    app.task("work")(print)
    app.task("work")(print)
    with pytest.raises(ValueError, match="'work' is registered twice"):
        app.task("work")(sys.exit)


# -- services


def test_a_service_runs_inside_the_worker_is_started_again_and_ends_with_it(app: Scheduler) -> None:
    class Service:
        def __init__(self) -> None:
            self.runs: list[str] = []
            self.running = threading.Event()

        def run(self, stop: threading.Event) -> None:
            self.runs.append(threading.current_thread().name)
            if len(self.runs) == 1:
                raise RuntimeError("the first time it fails")
            self.running.set()
            stop.wait(60)
            self.runs.append("ended")

    service = Service()
    app.task("work")(print)
    app.add_service(service)
    with Working(app):
        assert service.running.wait(60)
    assert service.runs == ["fencing-service", "fencing-service", "ended"]
