"""A claim begins where the last one ended; whatever comes to lie before that is found, at no growing cost."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.jobs import Hand, Tables, Working, ended, installed_beside
from support.waiting import eventually

from scheduler import Job, Scheduler, _claiming, _lanes
from scheduler._connect import Connection
from scheduler._lanes import KEPT, PRIORITIES, Found, Lanes
from scheduler._store import Claimed
from scheduler.console.embedded import Postgres

LEASE = 30.0
PAST = datetime.now(UTC) - timedelta(hours=1)
LATER = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_bounds")
    postgres.drop_database("scheduler_bounds")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("work", lease=LEASE)(print)
        app.task("other", lease=LEASE)(print)
        yield app, tables


@pytest.fixture
def hand(tables: Tables) -> Iterator[Hand]:
    one = Hand(tables.dsn, {"work": LEASE}, schema=tables.schema)
    yield one
    one.close()


def test_a_claim_begins_where_the_last_one_ended_and_a_sweep_at_the_front(app: Scheduler, hand: Hand) -> None:
    app.enqueue_many("work", [1, 2, 3])
    assert [job.args for job in hand.claim(2)] == [1, 2]
    app.enqueue("work", 0, due_at=PAST)
    assert [job.args for job in hand.claim(sweep=False)] == [3], "the bound is believed: this is what it saves"
    assert [job.args for job in hand.claim(sweep=True)] == [0]


def test_a_claim_after_a_rest_looks_back_for_what_was_committed_late(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    with psycopg.connect(tables.dsn) as late:
        app.enqueue("work", "late", connection=late)
        app.enqueue("work", "early")
        assert [job.args for job in hand.claim()] == ["early"]
        late.commit()
    assert hand.claim(sweep=False) == []
    assert [job.args for job in hand.claim(sweep=False, back=60.0)] == ["late"]


@pytest.mark.parametrize("how", ["returned", "rescued", "replayed", "higher priority", "lower priority"])
def test_what_comes_to_lie_before_the_bound_is_found_by_the_next_sweep(
    app: Scheduler, tables: Tables, hand: Hand, how: str
) -> None:
    app.enqueue_many("work", [1, 2, 3])
    first, *rest = hand.claim()
    for job in rest:
        hand.complete(job)
    if how == "returned":
        hand.settle(ended(first, "ready", "returned"))
    elif how == "rescued":
        tables.move_clock(LEASE + 1)
        hand.rescue()
    elif how == "replayed":
        hand.settle(ended(first, "dead", "dead"))
        app.replay(first.id, reason="a test")
    else:
        app.enqueue("work", 1, due_at=PAST, priority=7 if how == "higher priority" else -7)
    assert [job.args for job in hand.claim()] == [1]


def test_a_sweep_that_filled_its_batch_leaves_nothing_behind_the_bound(app: Scheduler, hand: Hand) -> None:
    app.enqueue_many("work", range(3))
    assert len(hand.claim()) == 3
    app.enqueue_many("work", range(10, 30), due_at=PAST)
    assert [job.args for job in hand.claim(5)] == list(range(10, 15))
    assert [job.args for _ in range(3) for job in hand.claim(5, sweep=False)] == list(range(15, 30))


def test_more_priorities_than_one_look_finds_are_found_by_the_next_ones(app: Scheduler, hand: Hand) -> None:
    priorities = list(range(2 * PRIORITIES + 10, 0, -1))
    for priority in priorities:
        app.enqueue("work", priority, priority=priority)
    assert [job.args for _ in range(3) for job in hand.claim(PRIORITIES)] == priorities[: 3 * PRIORITIES]


def test_a_claim_locks_no_more_than_it_takes_however_many_lanes_have_something(app: Scheduler, tables: Tables) -> None:
    for priority in (0, 1):
        for task in ("work", "other"):
            app.enqueue_many(task, [task] * 5, priority=priority)
    hand, beside = (Hand(tables.dsn, {"work": LEASE, "other": LEASE}, schema=tables.schema) for _ in range(2))
    with hand.on("claim").transaction():
        mine = hand.claim(6)
        yours = beside.claim(10)
        assert beside.looks_again, "it has met the other one"
        yours += beside.claim(10)
    assert [job.priority for job in mine] == [1] * 6
    assert [job.priority for job in yours] == [1] * 4 + [0] * 10, "what one claim did not take, another did"
    hand.close()
    beside.close()


@pytest.mark.parametrize("sweep", [True, False], ids=["sweep", "no sweep"])
def test_a_claim_of_several_tasks_that_got_nothing_looks_again_where_others_are_claiming_what_it_saw(
    app: Scheduler, tables: Tables, sweep: bool
) -> None:
    """They may hold all that it saw of one lane, while another lane has more."""
    app.enqueue_many("work", range(3), priority=1)
    hand, beside = (Hand(tables.dsn, {"work": LEASE, "other": LEASE}, schema=tables.schema) for _ in range(2))
    with hand.on("claim").transaction():
        assert len(hand.claim(guarded=False)) == 3
        assert beside.claim(guarded=False, sweep=sweep) == []
        assert beside.looks_again == sweep, "or the sweep that follows finds it out"
    assert beside.claim(guarded=False, sweep=sweep) == []
    assert not beside.looks_again
    hand.close()
    beside.close()


def test_a_claim_reads_no_entry_of_what_was_claimed_before_while_an_old_snapshot_is_held(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    app.enqueue_many("work", range(900), due_at=PAST)
    statements = hand.statements
    pages: dict[bool, list[int]] = {True: [], False: []}
    with psycopg.connect(tables.dsn) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select 1")
        lanes = Lanes(["default"], ["work"])
        for _ in range(8):
            lanes.claimed(hand.claim(100, sweep=False), swept_all=False)
            for bounded in (True, False):
                values = {
                    "owner": "x",
                    "lease": 1.0,
                    "batch": 1,
                    "back": 0.0,
                    "anyway": False,
                    **lanes.single(0.0, bounded=bounded),
                }
                text = f"explain (analyze, buffers, format json) {statements['claim_lane']}".encode()
                with hand.on("rescue").transaction(force_rollback=True):
                    plan = hand.on("rescue").execute(text, values, prepare=False).fetchall()[0][0][0]["Plan"]
                pages[bounded].append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    # The first one warms the caches.
    assert pages[True][-1] <= pages[True][1] + 4, f"pages read by one claim after another: {pages}"
    assert pages[False][-1] >= pages[False][1] + 10, f"the front is not what it was taken for: {pages}"


def test_a_worker_finds_a_late_commit_and_a_new_priority_within_seconds(app: Scheduler, tables: Tables) -> None:
    ran: list[object] = []

    @app.task("note")
    def note(job: Job) -> None:
        ran.append(job.args)

    with psycopg.connect(tables.dsn) as late, Working(app, concurrency=1):
        app.enqueue("note", "late", connection=late)
        for number in range(5):
            app.enqueue("note", number)
        eventually(lambda: len(ran) == 5, "the others ran")
        late.commit()
        app.enqueue("note", "urgent", priority=3, due_at=PAST)
        eventually(lambda: len(ran) == 7, "both were found")


def test_the_bounds_are_kept_for_each_queue_task_and_priority_and_never_go_back_by_a_claim() -> None:
    lanes = Lanes(["q"], ["a", "b"])
    lanes.found([Found("q", "a", 5, True, None), Found("q", "a", 0, True, None)], 0.0)

    def claimed(task: str, priority: int, minute: int, number: int) -> Claimed:
        due = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
        return Claimed(number, 1, "l", task, "q", "null", priority, due, 1, 1, 0, None, None, None, 0.0)

    assert lanes.single(0.0, bounded=True) is None, "there are several"
    lanes.claimed([claimed("a", 0, 4, 9), claimed("a", 0, 5, 7), claimed("b", 1, 1, 1)], swept_all=False)
    lanes.claimed([claimed("a", 0, 3, 9)], swept_all=False)
    bounds = lanes.parameters(0.0, bounded=True)
    assert list(zip(bounds["lane_tasks"], bounds["lane_priorities"], bounds["lane_ids"], strict=True)) == [
        ("a", 0, 7),
        ("b", 0, None),
        ("a", 5, None),
    ]
    assert set(lanes.parameters(0.0, bounded=False)["lane_ids"]) == {None}
    lanes.claimed([claimed("a", 0, 2, 3)], swept_all=True)
    assert lanes.parameters(0.0, bounded=True)["lane_ids"][0] == 3


def test_a_priority_of_which_nothing_was_claimed_is_left_out_until_something_of_it_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes = Lanes(["q"], ["a"])

    def read(now: float) -> list[int]:
        values = lanes.parameters(now, bounded=True)["lane_priorities"]
        single = lanes.single(now, bounded=True)
        assert (single is not None) == (len(values) == 1)
        assert single is None or single["priority"] == values[0]
        return sorted(values)

    def found(priority: int, due: bool, next_in: float | None) -> Found:
        return Found("q", "a", priority, due, next_in)

    lanes.found([found(7, False, 30.0), found(5, True, 30.0), found(3, False, None), found(0, False, 30.0)], 100.0)
    assert read(100.0) == [0, 3, 5], "one that is due, one whose queue is full, and 0, which is always read"
    assert read(130.0) == [0, 3, 5, 7], "it is known when the first of it is due"
    lanes.found([found(7, True, None)], 101.0)
    assert read(101.0) == [0, 3, 5, 7]
    lanes.found([found(7, False, 30.0)], 102.0)
    assert read(102.0) == [0, 3, 5], "nothing of it was claimed yet"
    job = Claimed(1, 1, "l", "a", "q", "null", 7, datetime(2026, 1, 1, tzinfo=UTC), 1, 1, 0, None, None, None)
    lanes.claimed([job], swept_all=False)
    lanes.found([found(7, False, 30.0)], 103.0)
    assert read(103.0) == [0, 3, 5, 7], "where there was one there may be another at any time"
    monkeypatch.setattr(_lanes, "PRIORITIES", 2)
    lanes.found([found(9, False, 30.0), found(8, False, 30.0)], 104.0)
    assert read(104.0) == [0, 3, 5, 7, 8, 9], "the next look goes on below these, and hears nothing of them"


def test_what_is_due_is_claimed_below_as_many_priorities_for_later_as_a_look_finds(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lanes, "PRIORITIES", 3)
    for priority in (1, 2, 3):
        app.enqueue("work", priority=priority, due_at=datetime.now(UTC) + timedelta(hours=1))
    app.enqueue("work")
    assert app.run_until_idle().completed == 1
    assert tables.states() == {"ready": 3, "completed": 1}


def test_jobs_for_later_of_other_priorities_leave_a_worker_its_quick_claim_and_are_claimed_when_they_are_due(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(_claiming, "lease_clock", lambda: now[0])
    hand = Hand(tables.dsn, {"work": LEASE}, schema=tables.schema)
    quick: list[str] = []
    answer = hand._claim._plainly
    monkeypatch.setattr(
        hand._claim,
        "_plainly",
        lambda connection, text, *rest: (
            quick.append("lane" if text is hand._claim._single else "general"),
            answer(connection, text, *rest),
        )[1],
    )  # what it answers is the claim's own
    for priority in (-1, 1):
        app.enqueue("work", f"later {priority}", priority=priority, due_at=datetime.now(UTC) + timedelta(hours=1))
    app.enqueue_many("work", range(4))
    assert [job.args for sweep in (True, False) for job in hand.claim(2, sweep=sweep)] == [0, 1, 2, 3]
    assert quick == ["lane", "lane"]
    tables.move_clock(3601)
    assert hand.claim(sweep=False) == [], "no sweep has told yet, and by what was told it is not due"
    now[0] += 3601
    assert [job.args for job in hand.claim(sweep=False, back=7200.0)] == ["later 1", "later -1"]
    assert quick == ["lane"] * 3 + ["general"]
    hand.close()


def test_priorities_that_come_and_go_are_forgotten_and_those_that_wait_are_not() -> None:
    """A deadline as priority: each is another one, and a claim must not look for all that there ever were."""
    lanes = Lanes(["q"], ["a", "b"])

    def known(task: str) -> set[int]:
        values = lanes.parameters(0.0, bounded=True)
        return {one for name, one in zip(values["lane_tasks"], values["lane_priorities"], strict=True) if name == task}

    waiting = list(range(2 * PRIORITIES + 10, 0, -1))  # of which a look finds a part
    for round_ in range(1000):
        below = lanes.search()["belows"][1]
        seen = [("a", -round_), *(("b", one) for one in waiting if one < below)][: PRIORITIES + 1]
        lanes.found([Found("q", task, priority, True, None) for task, priority in seen], 0.0)
        if round_ >= 3:
            assert known("b") == {0, *waiting}
    assert len(known("a")) <= KEPT + 1
    assert {0, -999} <= known("a")


def test_bulk_enqueuing_writes_what_it_was_given(app: Scheduler, hand: Hand) -> None:
    """The lines of COPY are put together by hand: what has a meaning there must arrive as it was."""
    given = [
        "a\\b",
        "tab\there",
        "line\nbreak\r",
        "\\N",
        "\\.",
        '"quoted"',
        "ä€😀",
        None,
        {"k": ["\\t", 1.5, True]},
        "",
    ]
    assert app.enqueue_many("work", given, exclusive=lambda one: "back\\slash" if one is None else None) == len(given)
    assert [job.args for job in hand.claim()] == given


class Explaining:
    """Stands before a connection, and explains what claims before it does it: how many pages that read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pages = 0

    def execute(self, text: str, values: dict[str, Any] | None = None) -> Any:
        if "update" in text:
            with self._connection.transaction(force_rollback=True):
                explain = f"explain (analyze, buffers, format json) {text}"
                plan = self._connection.execute(explain.encode(), values).fetchall()[0][0][0]["Plan"]
            self.pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return self._connection.execute(text.encode(), values)


def test_a_guarded_claim_does_not_read_through_later_jobs_to_find_those_that_are_due(
    app: Scheduler, tables: Tables
) -> None:
    """Those of a higher priority lie before them; up to PostgreSQL 17 each of them was looked at."""
    hand = Hand(tables.dsn, {"work": LEASE}, queues=["default", "limited"], schema=tables.schema)
    app.queue("limited", limit=5)
    app.sync_queues()
    kinds: list[dict[str, Any]] = [{"queue": "limited"}, {"exclusive": "x"}]
    pages = []
    for count in (1, 10, 10_000):  # the first claim reads the catalogue, too
        for options in kinds:
            for priority in (7, 0):
                app.enqueue_many("work", range(count), due_at=LATER, priority=priority, **options)
            app.enqueue("work", "due", priority=-1, **options)
        tables.rows("vacuum analyze {s}.job")
        explaining = Explaining(hand.on("claim"))
        jobs = hand._claim(explaining, 100)  # type: ignore[arg-type]
        assert [job.args for job in jobs] == ["due", "due"]
        for job in jobs:
            hand.complete(job)
        pages.append(explaining.pages)
    hand.close()
    _, few, many = pages
    assert many < few + 60, "the entries of 10,000 jobs are on some 80 pages, in each of four places"
