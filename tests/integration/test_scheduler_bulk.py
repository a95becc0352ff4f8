"""Bulk enqueuing: what is given arrives unchanged, all or nothing, read no further ahead than is sent."""

import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from typing import Any
from weakref import WeakSet

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.jobs import Tables, installed_beside

from scheduler import Scheduler
from scheduler._json import encoder
from scheduler.console.embedded import Postgres


@pytest.fixture(scope="module")
def ground(postgres: Postgres) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(postgres.create_database("scheduler_bulk")) as (app, tables):
        app.task("work")(print)
        yield app, tables
    postgres.drop_database("scheduler_bulk")


@pytest.fixture
def tables(ground: tuple[Scheduler, Tables]) -> Tables:
    ground[1].rows("delete from {s}.job")
    return ground[1]


@pytest.fixture
def app(ground: tuple[Scheduler, Tables], tables: Tables) -> Scheduler:
    return ground[0]


# -- what arrives

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
# JSON writes the shortest decimal that is nearest to the float: from here on that is another whole number.
floats = st.floats(-1e15, 1e15)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=zones)
names = st.sampled_from(["plain", "back\\slash", "\\N", "ä 😀"])


queues = count()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(values, st.none() | moments, st.none() | names), min_size=1, max_size=20))
def test_any_json_arrives_unchanged(app: Scheduler, tables: Tables, jobs: list[tuple[Any, Any, Any]]) -> None:
    numbered = [[number, one] for number, (one, _, _) in enumerate(jobs)]
    queue = str(next(queues))
    assert app.enqueue_many("work", [one for _, one in numbered], queue=queue) == len(jobs)
    app.enqueue_many(
        "work", numbered, due_at=lambda one: jobs[one[0]][1], exclusive=lambda one: jobs[one[0]][2], queue=f"{queue} f"
    )
    # Asked of the server: the driver would read dates before the year 1 nowhere, and these only in its own zone.
    plain, found = (
        tables.rows(
            "select args, exclusive, due_at = created_at as now, "
            "extract(epoch from due_at - '2000-01-01 00:00Z')::numeric * 1000000 as due "
            "from {s}.job where queue = %(queue)s order by id",
            queue=name,
        )
        for name in (queue, f"{queue} f")
    )
    assert [row["args"] for row in plain] == [one for _, one in numbered]
    assert all(row["now"] and row["exclusive"] is None for row in plain)
    assert [row["args"] for row in found] == numbered
    assert [row["exclusive"] for row in found] == [value for _, _, value in jobs]
    for row, (_, due, _) in zip(found, jobs, strict=True):
        since = due and (due - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert row["now"] if due is None else math.isclose(row["due"], since, abs_tol=64)


def test_each_column_is_what_enqueue_would_have_written(app: Scheduler, tables: Tables) -> None:
    """The columns that are left to their defaults, too."""
    given_ = {"n": 1, "text": 'zwei\tWörter\n"\\" 😀', "big": 10**40, "float": 0.1}
    options: dict[str, Any] = {"due_at": datetime(2030, 1, 1, 3, 4, 5, 678901, UTC), "exclusive": "x", "queue": "q"}
    app.enqueue("work", given_, priority=-3, **options)
    app.enqueue_many("work", [given_], priority=-3, **options)
    app.enqueue_many("work", [given_], priority=-3, **options, connection=None, key=lambda _: None)
    one, *others = [
        {name: value for name, value in row.items() if name not in ("id", "created_at")} for row in tables.jobs()
    ]
    assert others == [one, one]


def test_what_json_writes_is_the_same_with_and_without_the_encoder_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"ä": [1, 2.5, None, True, 'a"\\\n\t\x7f\u2028😀', {}], 3: 10**30}
    assert encoder()(value) == json.dumps(value, ensure_ascii=False)
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    assert encoder()(value) == json.dumps(value, ensure_ascii=False)


# -- all or nothing

circle: list[Any] = []
circle.append(circle)
deep: list[Any] = []
for _ in range(100_000):
    deep = [deep]


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (object(), TypeError, "not JSON .*not JSON serializable"),
        (math.nan, TypeError, "not JSON .*not JSON compliant"),
        (circle, TypeError, "not JSON .*Circular"),
        (deep, TypeError, "not JSON .*recursion"),
        ("ä" * (1 << 19), ValueError, "1,048,578 bytes of JSON, at most 1,048,576"),
        ("a\0b", ValueError, "NUL character"),
        ("a\ud800b", ValueError, "surrogate"),
    ],
    ids=["object", "nan", "circle", "deep", "large", "nul", "surrogate"],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_one_that_cannot_be_stored_is_named_and_nothing_is_written(
    app: Scheduler, tables: Tables, bad: Any, error: type[Exception], text: str, keyed: bool
) -> None:
    """However late it comes: pages before it were sent."""
    args = [*range(2_345), bad, *range(1_000)]
    key: Callable[[Any], str | None] | None = (lambda _: None) if keyed else None
    with pytest.raises(error, match=rf"^args\[2345\]: the arguments of 'work' .*{text}"):
        app.enqueue_many("work", iter(args), key=key)
    assert tables.jobs() == []
    assert app.enqueue_many("work", [1]) == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"due_at": lambda one: datetime(2026, 1, 1) if one == 1_500 else None}, ValueError, "no time zone"),
        ({"exclusive": lambda one: 7 if one == 1_500 else None}, TypeError, "named by a str"),
        ({"key": lambda one: "" if one == 1_500 else None}, ValueError, "1 to 500 printable"),
        ({"key": lambda one: None if one == 1_500 else str(one), "unique": "forever"}, ValueError, "gave None"),
    ],
    ids=["due_at", "exclusive", "key", "forever"],
)
def test_a_function_that_gives_what_cannot_be_is_named_with_its_place(
    app: Scheduler, tables: Tables, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=rf"^args\[1500\]: .*{text}"):
        app.enqueue_many("work", range(3_000), **options)
    assert tables.jobs() == []


def test_what_the_callers_code_raises_comes_out_as_it_is_and_nothing_is_written(app: Scheduler, tables: Tables) -> None:
    class TheirsError(Exception):
        pass

    def failing() -> Iterator[int]:
        yield from range(2_500)
        raise TheirsError

    with pytest.raises(TheirsError):
        app.enqueue_many("work", failing())
    with pytest.raises(ZeroDivisionError):
        app.enqueue_many("work", range(3_000), due_at=lambda one: 1 // (one - 2_500) and None)
    assert tables.jobs() == []
    assert app.enqueue_many("work", [1]) == 1


def test_the_largest_that_is_taken_is_taken(app: Scheduler, tables: Tables) -> None:
    assert app.enqueue_many("work", ["x" * ((1 << 20) - 2)] * 5 + ["\\u0000"]) == 6
    assert [len(job["args"]) for job in tables.jobs()] == [(1 << 20) - 2] * 5 + [6]


# -- while it is read


def test_a_generator_is_read_while_the_server_writes_and_no_job_is_kept(app: Scheduler, tables: Tables) -> None:
    class Args(dict[str, int]):
        __hash__ = object.__hash__

    alive: WeakSet[Args] = WeakSet()
    seen: list[int] = []

    def generated() -> Iterator[Args]:
        for number in range(20_000):
            args = Args(n=number)
            alive.add(args)
            if number == 15_000:
                seen.append(len(alive))
                copying = "select count(*) from pg_stat_activity where query like 'copy%%' and state = 'active'"
                seen.append(tables.one(copying))
                # On a connection of its own: nobody waits for a slow generator, and this one would wait for itself.
                app.enqueue("work", "between")
                assert app.enqueue_many("work", ["more"]) == 1
            yield args

    assert app.enqueue_many("work", generated()) == 20_000
    assert seen[0] < 10
    assert seen[1] == 1
    assert tables.one("select count(*) from {s}.job") == 20_002


@pytest.mark.parametrize(
    "options", [{}, {"key": str}, {"key": str, "unique": "forever"}], ids=["copy", "alive", "forever"]
)
def test_many_that_are_due_are_told_of_and_others_are_not(
    app: Scheduler, tables: Tables, options: dict[str, Any]
) -> None:
    later = datetime(2099, 1, 1, tzinfo=UTC)
    with psycopg.connect(tables.dsn, autocommit=True) as listener:
        listener.execute(f'listen "{tables.schema}_due"'.encode())
        app.enqueue_many("work", range(3), due_at=later, queue="later", **options)
        app.enqueue_many("work", range(3, 6), due_at=lambda _: later, queue="later too", **options)
        app.enqueue_many(
            "work", range(6, 9), due_at=lambda one: None if one == 8 else later, queue="one of them", **options
        )
        app.enqueue_many("work", range(9, 12), queue="now", **options)
        notes = list(listener.notifies(timeout=10, stop_after=2))
    assert [note.payload for note in notes] == ["one of them", "now"]
