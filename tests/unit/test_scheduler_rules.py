"""The scheduler's pure rules: how much to claim, when to try again, what can be stored, where tokens start."""

import random
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from fencing.errors import ContentionError
from scheduler import Bury, Job, Occurrence, Retry, RetryIn, _enqueue
from scheduler._catch_up import plan_catch_up
from scheduler._claim import MAX_BATCH, room, yield_delay
from scheduler._connect import normalise_dsn, translate
from scheduler._enqueue import checked_due, checked_priority
from scheduler._held import Work
from scheduler._issuer import LIMIT, clock_floor
from scheduler._json import MAX_JSON, json_text, storable
from scheduler._retry import MAX_WAIT
from scheduler._sql import Statements
from scheduler._states import FINAL, STATES, TRANSITIONS
from scheduler._tasks import check_name, declared_fences, make_task
from scheduler.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    IssuerError,
    NotMigratedError,
    ValueRefusedError,
)

# -- how much to claim


def test_the_rate_is_what_the_handlers_could_do_however_slow_claims_and_settlements_are() -> None:
    work = Work()
    assert work.able(8) == 0, "nothing is known yet"
    work.measure(4, [0.001] * 4)
    assert work.able(8) == pytest.approx(8000), "known after the first settlement"
    work._since -= 10
    work.measure(1, [])
    assert work.able(8) == pytest.approx(8000), "ten seconds without work say nothing of the handlers"
    work._since -= 10
    work.measure(2, [3.0, 1.0])
    assert work.able(8) == pytest.approx(4), "slow ones are believed at once"
    work._since -= 10
    work.measure(2, [0.5, 0.5])
    assert work.able(8) == pytest.approx(8 / 1.25), "quick ones by and by"
    work._since -= 10
    work.measure(2, [0.0, 0.0])
    assert work.able(8) < 1e6


def test_a_slow_worker_claims_one_job_per_idle_thread() -> None:
    assert room(8, waiting=0, running=0, per_second=0, batch=100, shortest_lease=30) == 8
    assert room(8, waiting=0, running=5, per_second=2, batch=100, shortest_lease=30) == 3
    assert room(8, waiting=0, running=8, per_second=2, batch=100, shortest_lease=30) == 0
    assert room(8, waiting=3, running=5, per_second=2, batch=100, shortest_lease=30) == 0


def test_a_fast_worker_claims_whole_batches_but_no_more_than_it_runs_in_a_part_of_the_lease() -> None:
    assert room(8, waiting=0, running=8, per_second=4000, batch=100, shortest_lease=30) == 100
    assert room(8, waiting=0, running=8, per_second=4000, batch=10_000, shortest_lease=30) == MAX_BATCH
    assert room(8, waiting=0, running=8, per_second=400, batch=100, shortest_lease=1) == 40
    assert room(8, waiting=990, running=8, per_second=4000, batch=100, shortest_lease=30) == 0, "a trickle"


# -- when to try again


def test_the_wait_before_a_retry_grows_to_the_cap_and_is_drawn_from_the_whole_of_it() -> None:
    rng = random.Random(1)
    retry = Retry(base=2.0, cap=60.0)
    for attempt, ceiling in ((1, 2), (2, 4), (3, 8), (6, 60), (10_000, 60)):
        drawn = [retry.delay(attempt, rng) for _ in range(400)]
        assert 0 <= min(drawn) < ceiling * 0.05
        assert ceiling * 0.95 < max(drawn) <= ceiling


def test_a_job_that_yields_stays_away_longer_each_time_and_never_for_no_time() -> None:
    rng = random.Random(1)
    for yields, ceiling in ((0, 0.05), (1, 0.1), (5, 1.6), (6, 2.0), (10_000, 2.0)):
        drawn = [yield_delay(yields, rng) for _ in range(200)]
        assert ceiling / 2 <= min(drawn) < max(drawn) <= ceiling


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Retry(max_attempts=0),
        lambda: Retry(max_attempts=2**31),
        lambda: Retry(max_attempts=True),
        lambda: Retry(base=-1),
        lambda: Retry(cap=float("nan")),
        lambda: Retry(cap=MAX_WAIT * 2),
        lambda: RetryIn(-0.1),
        lambda: RetryIn(float("inf")),
        lambda: RetryIn("soon"),  # type: ignore[arg-type]
        lambda: RetryIn(10**400),
    ],
)
def test_a_wait_that_cannot_be_waited_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"Retry(In)?[: ]"):
        wrong()


def test_a_reason_is_a_text() -> None:
    for wrong in (None, "", 4):
        with pytest.raises(TypeError, match="Bury takes a reason"):
            Bury(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the reason is a text"):
        RetryIn(1, reason=None)  # type: ignore[arg-type]


# -- what can be stored


@pytest.mark.parametrize(
    "value", [None, 0, "", [], {"a": [1.5, None, True]}, "\\u0000 as typed", "\\\\", "zwei\u00a0Wörter 😀", 10**300]
)
def test_json_is_taken_as_it_is(value: object) -> None:
    import json

    assert json.loads(json_text(value, "the arguments")) == value


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        (object(), TypeError, "are not JSON"),
        ({1, 2}, TypeError, "are not JSON"),
        (b"bytes", TypeError, "are not JSON"),
        (datetime(2026, 1, 1, tzinfo=UTC), TypeError, "are not JSON"),
        (float("nan"), TypeError, "are not JSON"),
        ({(1, 2): 3}, TypeError, "are not JSON"),
        ("a\x00b", ValueError, "NUL"),
        ({"\\\x00": 1}, ValueError, "NUL"),
        ("\ud800", ValueError, "surrogate"),
        ("x" * MAX_JSON, ValueError, "bytes of JSON, at most 1,048,576"),
    ],
)
def test_what_json_or_the_database_cannot_hold_is_refused_by_name(
    value: object, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=f"the arguments of 'send'.*{says}"):
        json_text(value, "the arguments of 'send'")


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(TypeError, match="are not JSON"):
            json_text(value, "the arguments")


def test_any_text_can_be_made_storable_and_keeps_its_end() -> None:
    assert storable("ab\x00\ud800c", 3) == "\N{REPLACEMENT CHARACTER}\\ud800c"
    assert storable("x" * 20 + "the end", 7) == "the end"


@pytest.mark.parametrize("due", ["2026-01-01", 0, timedelta(1)])
def test_a_due_time_is_a_datetime(due: object) -> None:
    with pytest.raises(TypeError, match="due_at= takes an aware datetime"):
        checked_due(due)


def test_a_due_time_has_a_zone() -> None:
    with pytest.raises(ValueError, match=r"due_at= has no time zone \(2026-01-01T00:00:00\)"):
        checked_due(datetime(2026, 1, 1))


@pytest.mark.parametrize("moment", [datetime.min, datetime.max])
@pytest.mark.parametrize("hours", [-14, 0, 14])
def test_a_due_time_is_one_that_can_be_read_in_every_zone(moment: datetime, hours: int) -> None:
    with pytest.raises(ValueError, match="due_at= is a moment from 0001-01-02 to 9999-12-30 in UTC, not"):
        checked_due(moment.replace(tzinfo=timezone(timedelta(hours=hours))))


def test_many_large_jobs_are_sent_in_pages_that_one_statement_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_enqueue, "PAGE", 4)
    monkeypatch.setattr(_enqueue, "PAGE_CHARACTERS", 30)
    plan = _enqueue._plan_many({}, [_enqueue.Row("x" * size, None, None, None) for size in (10, 10, 10, 40, *[1] * 6)])
    pages = [[len(args) for args in next(plan)["args"]]]
    with pytest.raises(StopIteration) as end:
        while True:
            pages.append([len(args) for args in plan.send([(len(pages[-1]),)])["args"]])
    assert (pages, end.value.value) == ([[10, 10, 10], [40], [1, 1, 1, 1], [1, 1]], 10)


@pytest.mark.parametrize("priority", [1.0, True, "1", 2**31, -(2**31) - 1, None])
def test_a_priority_is_a_whole_number_that_the_column_holds(priority: object) -> None:
    with pytest.raises(ValueError, match="priority="):
        checked_priority(priority)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\x00b", "\ud800"])
def test_a_name_is_short_and_printable(name: str) -> None:
    with pytest.raises(ValueError, match="a task's name is 1 to 200 printable characters"):
        check_name("task", name)


@pytest.mark.parametrize(
    "change",
    [
        {"lease": 0.1},
        {"lease": float("nan")},
        {"lease": 10**6},
        {"lease": "30"},
        {"max_yields": 0},
        {"max_runtime": 0.1},
        {"max_runtime": float("inf")},
        {"max_runtime": True},
        {"retry": 5},
        {"handler": "not callable"},
    ],
)
def test_an_impossible_setting_of_a_task_is_refused_with_its_name(change: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "name": "send",
        "handler": print,
        "lease": 30,
        "retry": Retry(),
        "fences": None,
        "preempt": False,
        "max_yields": 100,
    }
    make_task(**good)
    with pytest.raises((ValueError, TypeError), match="task 'send'"):
        make_task(**(good | change))


def test_a_fixed_list_of_fences_is_the_same_for_every_job() -> None:
    task = make_task("send", print, 30, Retry(), iter([("target", "a")]), False, 100)
    job: Job = None  # type: ignore[assignment]
    assert task.fences is not None
    assert task.fences(job) == task.fences(job) == [("target", "a")]


@pytest.mark.parametrize("given", [("engine", "a"), [("engine",)], ["engine"], "engine", None, [None]], ids=repr)
def test_fences_of_another_shape_are_refused_by_the_task_s_name(given: Any) -> None:
    with pytest.raises(TypeError, match=r"task 'send': fences= gives a list of \(target, resource, …\)"):
        declared_fences("send", given)
    if isinstance(given, list | tuple):  # a fixed list is known when the task is registered
        with pytest.raises(TypeError, match="task 'send': fences="):
            make_task("send", print, 30, Retry(), given, False, 100)


def test_fences_may_come_from_a_generator() -> None:
    given = ((target, "a", "b") for target in ("one", "two"))
    assert declared_fences("send", given) == [("one", ["a", "b"]), ("two", ["a", "b"])]
    assert declared_fences("send", []) == []


# -- where tokens start

YEAR_MS = 366 * 24 * 3600 * 1000


def test_a_floor_is_the_clock_shifted_so_that_claims_never_overtake_it() -> None:
    assert clock_floor(1_000, 0) == 1_000 * 2048
    assert clock_floor(1_001, 0) - clock_floor(1_000, 0) == 2048
    assert clock_floor(0, 0) == 0
    assert clock_floor(-5, 0) == 0, "a clock before 2025 starts at the bottom; the sequence's own value then decides"


def test_a_clock_more_than_a_year_past_the_last_change_is_refused() -> None:
    floor = clock_floor(1_000, 0)
    assert clock_floor(1_000 + YEAR_MS, floor) > floor
    with pytest.raises(IssuerError, match=r"more than a year past.*issuer bump"):
        clock_floor(1_001 + YEAR_MS, floor)


def test_a_clock_behind_the_last_change_is_no_error_since_the_sequence_itself_stays_above() -> None:
    assert clock_floor(1_000, clock_floor(9_000, 0)) == 1_000 * 2048


def test_tokens_fit_into_a_double_until_2164_and_a_clock_beyond_is_refused() -> None:
    last = int((datetime(2164, 1, 1, tzinfo=UTC) - datetime(2025, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    assert clock_floor(last, 0) < LIMIT == 2**53
    with pytest.raises(IssuerError, match="2164"):
        clock_floor(LIMIT >> 11, 0)


# -- what was missed

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def occurrence(minutes: float) -> Occurrence:
    due = NOW + timedelta(minutes=minutes)
    return Occurrence(due, due.replace(tzinfo=None), 0, 1, due.isoformat())


@pytest.mark.parametrize(
    ("policy", "limit", "grace", "minutes", "runs"),
    [
        ("none", 5, None, [-30, -20, -0.5, 0.05], [-0.5, 0.05]),
        ("none", 5, 25, [-30, -20, -0.5, 0.05], [-20, -0.5, 0.05]),
        ("none", 5, 0, [-30, -0.01, 0.05], [0.05]),
        ("latest", 5, None, [-30, -20, -10], [-10]),
        ("latest", 5, None, [-30, -20, 0.05], [0.05]),
        ("all", 5, None, [-30, -20, -10, 0.05], [-30, -20, -10, 0.05]),
        ("all", 2, None, [-30, -20, -10, 0.05], [-20, -10, 0.05]),
        ("all", 1, 15, [-30, -20, -10, 0.05], [-20, -10, 0.05]),
        ("all", 2, None, [], []),
    ],
)
def test_catching_up(policy: Any, limit: int, grace: float | None, minutes: list[float], runs: list[float]) -> None:
    given = [occurrence(one) for one in minutes]
    allowed = None if grace is None else timedelta(minutes=grace)
    planned = plan_catch_up(given, NOW, policy, limit, allowed)
    assert [one.occurrence for one in planned] == given, "every occurrence is told of, in order"
    assert [one.occurrence for one in planned if one.skipped is None] == [occurrence(one) for one in runs]
    assert all("missed" in one.skipped for one in planned if one.skipped is not None)


# -- names, addresses, errors, states


@pytest.mark.parametrize("schema", ["", "Fencing", "a-b", "pg_mine", "x" * 41, 'a"b', "1a", None])
def test_a_schema_is_a_plain_identifier(schema: Any) -> None:
    with pytest.raises(ValueError, match="schema= takes a plain identifier"):
        Statements(schema)


@pytest.mark.parametrize("dsn", ["mysql://host/db", "postgresql+asyncpg://host/db", "no connection string", ""])
def test_an_address_that_is_not_postgresql_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCING_DSN", raising=False)
    with pytest.raises(ValueError, match=r"psycopg|connection string|no database"):
        normalise_dsn(dsn)


def test_an_address_may_be_libpqs_or_sqlalchemys_or_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert normalise_dsn("postgresql+psycopg://me@host/db") == "postgresql://me@host/db"
    assert normalise_dsn("host=here dbname=db") == "host=here dbname=db"
    monkeypatch.setenv("FENCING_DSN", "postgres://me@host/db")
    assert normalise_dsn(None) == "postgresql://me@host/db"


class _Unnamed(psycopg.InternalError):
    """A transaction's timeout, as the first releases of the driver tell it, which have no class for it."""

    sqlstate = None
    diag = SimpleNamespace(sqlstate="25P04")  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.SerializationFailure(), ContentionError),
        (psycopg.errors.DeadlockDetected(), ContentionError),
        (psycopg.errors.LockNotAvailable(), ContentionError),
        (psycopg.errors.AdminShutdown(), DatabaseUnavailableError),
        (psycopg.errors.ReadOnlySqlTransaction(), DatabaseUnavailableError),
        (psycopg.errors.ObjectNotInPrerequisiteState("recovery is in progress"), DatabaseUnavailableError),
        (psycopg.errors.ObjectNotInPrerequisiteState("no replica identity"), DatabaseError),
        (psycopg.errors.TooManyConnections(), DatabaseUnavailableError),
        (psycopg.errors.IdleInTransactionSessionTimeout(), DatabaseUnavailableError),
        (_Unnamed(), DatabaseUnavailableError),
        (psycopg.OperationalError("gone"), DatabaseUnavailableError),
        (psycopg.errors.UndefinedTable(), NotMigratedError),
        (psycopg.errors.InvalidSchemaName(), NotMigratedError),
        (psycopg.errors.UntranslatableCharacter(), ValueRefusedError),
        (psycopg.errors.ProgramLimitExceeded(), ValueRefusedError),
        (psycopg.DataError("NUL"), ValueRefusedError),
        (psycopg.errors.DiskFull(), DatabaseError),
    ],
)
def test_each_failure_of_the_database_is_told_from_the_others(error: psycopg.Error, kind: type[Exception]) -> None:
    translated = translate(error, "claim")
    assert type(translated) is kind
    assert str(translated).startswith("claim: ")


def test_what_the_audit_refuses_is_not_said_to_lack_a_grant() -> None:
    refused = psycopg.errors.InsufficientPrivilege("fencing.attempt is append-only: update is refused\nCONTEXT: …")
    assert str(translate(refused, "claim")) == "claim: fencing.attempt is append-only: update is refused"
    assert "--print-grants" in str(translate(psycopg.errors.InsufficientPrivilege("permission denied"), "claim"))


def test_what_is_final_only_comes_back_by_a_replay() -> None:
    assert {(start, end) for start, end in TRANSITIONS if start in FINAL} == {("dead", "ready"), ("cancelled", "ready")}
    assert {state for pair in TRANSITIONS for state in pair} == set(STATES)


# -- the edges of the rules, where a mutation would go unnoticed


@pytest.mark.parametrize("attempts", [1, 2**31 - 1])
@pytest.mark.parametrize("wait", [0, 0.5, MAX_WAIT])
def test_the_outermost_retries_are_allowed(attempts: int, wait: float) -> None:
    assert Retry(attempts, base=wait, cap=wait).max_attempts == attempts
    assert RetryIn(wait).seconds == wait


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: Retry(base=-1), ValueError, "Retry: base is a number of seconds from 0 to "),
        (lambda: Retry(cap=-1), ValueError, "Retry: cap is a number of seconds from 0 to "),
        (lambda: RetryIn(1, 7), TypeError, "RetryIn: the reason is a text, not int"),
    ],
)
def test_a_bad_retry_is_told_by_its_name(make: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(says)


def test_the_given_source_of_chance_is_the_one_that_is_used() -> None:
    assert Retry(base=8.0, cap=60.0).delay(2, random.Random(1)) == random.Random(1).uniform(0, 16.0)
    assert yield_delay(2, random.Random(1)) == random.Random(1).uniform(0.1, 0.2)


def test_what_was_due_exactly_at_the_end_of_the_grace_is_not_late() -> None:
    at_the_edge, late = occurrence(-1), occurrence(-1.001)
    for grace in (None, timedelta(minutes=1)):
        planned = plan_catch_up([late, at_the_edge], NOW, "none", 5, grace)
        assert [one.skipped for one in planned] == ["missed, catch-up is 'none'", None]


def test_each_policy_tells_its_own_reason() -> None:
    given = [occurrence(minutes) for minutes in (-30, -20, -10)]
    assert [one.skipped for one in plan_catch_up(given, NOW, "all", 2, None)] == [
        "missed, over the catch-up limit",
        None,
        None,
    ]
    assert [one.skipped for one in plan_catch_up(given, NOW, "latest", 2, None)] == [
        "missed, catch-up is 'latest'"
    ] * 2 + [None]
    assert plan_catch_up(given, NOW, "all", 0, None)[-1].skipped == "missed, over the catch-up limit"


def test_a_fast_worker_waits_until_half_a_batch_is_wanted() -> None:
    """Four hundred a second: a hundred are held ready, and fifty make a claim."""
    fast = {"running": 8, "per_second": 400, "batch": 100, "shortest_lease": 30.0}
    assert room(8, waiting=50, **fast) == 50
    assert room(8, waiting=51, **fast) == 0
    assert room(8, waiting=0, **(fast | {"per_second": 4})) == 1, "with nothing waiting a trickle is welcome"
