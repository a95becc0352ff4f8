"""How long ``once=`` keys are kept: what was purged is never applied a second time."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from support import sql_doors
from support.locks import wait_until_blocked
from support.mariadb import MariaDB
from support.sql_doors import ISOLATION, PUT, Door, do, ledger, marks, token, with_isolation

from adapters.sql import PurgedKeys, SqlGuard, metadata, purge_applied, read_applied
from fencing import Lease, Token, errors, fenced_write
from fencing._lease import holding, lease_clock
from scheduler.console.cli import main

APPLIED = metadata.tables["fencing_applied"]
HORIZON = metadata.tables["fencing_horizon"]
ACT = metadata.tables["fencing_act"]
DAY = timedelta(days=1)
NOW = datetime.now(UTC)
OLD, YOUNG = NOW - 100 * DAY, NOW - 10 * DAY
DOORS = (
    "postgresql/psycopg", "postgresql/psycopg-async", "postgresql/connection", "postgresql/engine",
    "postgresql/sessionmaker-async", "sqlite/session", "sqlite/engine", "sqlite/engine-async",
    "mysql/connection", "mysql/engine", "mysql/sessionmaker-async",
)  # fmt: skip


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Door:
    return Door(request.param, address_of(request.param, request), SqlGuard(lock_timeout=60))


@pytest.fixture(params=["postgresql", "sqlite", "mysql"])
def address(request: pytest.FixtureRequest) -> str:
    return address_of(request.param, request)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def address_of(name: str, request: pytest.FixtureRequest) -> str:
    if name.startswith("postgresql"):
        return str(request.getfixturevalue("pg"))
    if name.startswith("mysql"):
        return sql_doors.empty_mysql(request.getfixturevalue("mariadb_bank"))
    path: Path = request.getfixturevalue("tmp_path")
    address = f"sqlite:///{path / 'bank.db'}"
    sql_doors.prepare(address)
    return address


def apply(address: str, key: str, began_at: datetime | None = None, value: int = 5, who: Any = None) -> Any:
    def effect(connection: Any) -> str:
        do(connection, PUT, id=key, owner=value)
        return "done"

    shown = token(value) if who is None else who
    return fenced_write(sql_doors.engine(address), "a", effect=effect, token=shown, once=key, began_at=began_at)


def age(address: str, *keys: str, by: timedelta = 100 * DAY) -> None:
    """The records, as if they were made so long ago."""
    with sql_doors.engine(address).begin() as connection:
        for key in keys:
            changed = connection.execute(
                sa.update(APPLIED).where(APPLIED.c.key == key).values(applied_at=datetime.now(UTC) - by)
            )
            assert changed.rowcount == 1


def keys(address: str) -> set[str]:
    with sql_doors.engine(address).connect() as connection:
        return set(connection.execute(sa.select(APPLIED.c.key)).scalars())


def purge(address: str, older_than: timedelta = 50 * DAY, **options: Any) -> PurgedKeys:
    done = purge_applied(sql_doors.engine(address), older_than, **options)
    assert isinstance(done, PurgedKeys)
    return done


def begun(moment: datetime | None) -> Any:
    """What a job or request shows of itself."""
    return SimpleNamespace(token=token(9), holder="replayer", began_at=moment)


def test_after_a_purge_old_work_is_refused_and_young_work_is_not(door: Door) -> None:
    """A replay comes with a newer token, so only the age of the work can tell."""
    calls = []

    def effect(handle: Any) -> Any:
        calls.append(1)
        return do(handle, PUT, id="a", owner=len(calls)) if not door.is_async else written(handle)

    async def written(handle: Any) -> None:
        await do(handle, PUT, id="a", owner=len(calls))

    def work(key: str, value: int, began_at: datetime | None) -> None:
        door.apply("a", token=token(value), effect=lambda handle: none(effect(handle)), once=key, began_at=began_at)

    def none(done: Any) -> Any:
        async def later() -> None:
            await done

        return later() if asyncio.iscoroutine(done) else None

    work("kept", 5, OLD)
    work("gone", 5, OLD)
    age(door.address, "gone")
    purge(door.address)
    for replayed, says in ((OLD, "its work began at"), (None, "nobody says when its work began")):
        with pytest.raises(errors.KeyExpiredError, match=says) as caught:
            work("gone", 9, replayed)
        assert (caught.value.key, caught.value.began_at) == ("gone", replayed)
        assert caught.value.horizon is not None
        assert OLD < caught.value.horizon < YOUNG
    assert (len(calls), marks(door.address)) == (2, {"a": "shop/line-a/5"})
    work("kept", 6, None)  # there is a record
    assert len(calls) == 2
    work("new", 7, YOUNG)
    work("gone", 8, YOUNG)  # of new work under an old key
    assert (len(calls), ledger(door.address), keys(door.address)) == (4, {"a": 4}, {"kept", "new", "gone"})
    work("gone", 9, OLD)  # and there is a record again
    assert len(calls) == 4


def test_the_stale_are_refused_as_stale_whatever_their_age(address: str) -> None:
    apply(address, "k", OLD, 9)
    purge(address)
    with pytest.raises(errors.StaleTokenError):
        apply(address, "other", OLD, 5)


def test_who_catches_the_refusal_and_commits_leaves_nothing_of_it(address: str) -> None:
    apply(address, "first", YOUNG)
    purge(address)
    with sql_doors.engine(address).begin() as connection:
        with pytest.raises(errors.KeyExpiredError):
            fenced_write(connection, "a", effect=pytest.fail, token=token(9), once="old", began_at=OLD)
        do(connection, PUT, id="other", owner=1)
    assert (keys(address), marks(address)) == ({"first"}, {"a": "shop/line-a/5"})
    assert ledger(address) == {"first": 5, "other": 1}


def test_what_is_purged_and_what_stays(address: str) -> None:
    """A record stays if its effect was applied, or its work began, since then: and an hour longer than asked for."""
    for key, began_at in (("old", OLD), ("unsaid", None), ("recent", OLD), ("just", OLD), ("ahead", YOUNG)):
        apply(address, key, began_at)
    age(address, "old", "unsaid", "ahead")
    age(address, "recent", by=10 * DAY)
    age(address, "just", by=50 * DAY + timedelta(minutes=30))
    looked = purge(address, dry_run=True)
    assert (looked.removed, looked.left, keys(address)) == (2, 3, {"old", "unsaid", "recent", "just", "ahead"})
    assert apply(address, "before it is purged", OLD) == "done"
    done = purge(address, batch=2, reason="yearly", actor=address)
    assert (done.removed, done.left) == (2, 4)
    assert keys(address) == {"recent", "just", "ahead", "before it is purged"}
    assert done.horizon is not None
    assert abs(done.horizon - (datetime.now(UTC) - 50 * DAY)) < timedelta(minutes=5)
    with sql_doors.engine(address).connect() as connection:
        mine = sa.select(ACT.c.reason, ACT.c.detail).where(ACT.c.kind == "purge", ACT.c.actor == address)
        acts = connection.execute(mine).all()
    assert {one.reason for one in acts} == {"yearly"}
    assert sum(json.loads(one.detail)["removed"] for one in acts) == 2


def test_the_horizon_never_goes_back(address: str) -> None:
    first = purge(address, 10 * DAY)
    second = purge(address, 50 * DAY)
    assert second.horizon == first.horizon
    with pytest.raises(errors.KeyExpiredError):
        apply(address, "k", NOW - 20 * DAY)
    third = purge(address, 5 * DAY)
    assert third.horizon is not None
    assert first.horizon is not None
    assert third.horizon > first.horizon


def test_a_purge_may_live_and_die_with_the_callers_transaction(address: str) -> None:
    apply(address, "k", OLD)
    age(address, "k")
    with sql_doors.engine(address).connect() as connection:
        assert purge_applied(connection, 50 * DAY).removed == 1
        connection.rollback()
    assert keys(address) == {"k"}
    assert apply(address, "other", OLD) == "done"


def test_purging_through_an_async_engine(address: str) -> None:
    apply(address, "k", OLD)
    age(address, "k")

    async def work() -> tuple[Any, Any, Any]:
        bind = create_async_engine(sql_doors.async_url(address), poolclass=sa.pool.NullPool)
        try:
            found = await read_applied(bind, "k")
            return found, await purge_applied(bind, 50 * DAY, dry_run=True), await purge_applied(bind, 50 * DAY)
        finally:
            await bind.dispose()

    found, looked, done = asyncio.run(work())
    assert (found.key, found.result, found.token, found.began_at) == ("k", "done", token(5), OLD)
    assert (looked.removed, done.removed, keys(address)) == (1, 1, set())
    assert purge_applied(SqlGuard(lock_timeout=1).on(sql_doors.engine(address)), 50 * DAY).removed == 0


def test_who_says_when_work_began(address: str) -> None:
    """The caller, or the job, lease or request whose token is meant."""
    purge(address)
    assert apply(address, "said", YOUNG) == "done"
    assert apply(address, "shown", None, 9, begun(YOUNG)) == "done"
    assert apply(address, "said of the shown", YOUNG, 9, begun(OLD)) == "done"
    for refused in (begun(OLD), begun(None)):
        with pytest.raises(errors.KeyExpiredError):
            apply(address, "refused", None, 9, refused)
    lease = Lease(token(9), "job/1", "me", deadline=lease_clock() + 60)
    for moment in (OLD, YOUNG):
        lease.began_at = moment
        job = SimpleNamespace(token=lease.token, lease=lease)
        for shown in (lease, job, None):
            with holding(lease):
                call = {"effect": lambda connection: 1, "token": shown, "once": f"of {shown is job} {shown is None}"}
                if moment is YOUNG:
                    assert fenced_write(sql_doors.engine(address), "a", **call) == 1
                else:
                    with pytest.raises(errors.KeyExpiredError):
                        fenced_write(sql_doors.engine(address), "a", **call)
    kept = read_applied(sql_doors.engine(address), "shown")
    assert (kept.token, kept.holder, kept.began_at) == (token(9), "replayer", YOUNG)
    assert read_applied(sql_doors.engine(address), "refused") is None


@pytest.mark.parametrize("bad", ["2026-01-01", 7, datetime(2026, 1, 1)], ids=repr)
def test_a_moment_that_is_none_is_refused(pg: str, bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="began_at="):
        apply(pg, "k", bad)
    with pytest.raises(TypeError, match="once="):
        fenced_write(sql_doors.engine(pg), "a", effect=lambda connection: 1, token=token(5), began_at=OLD)
    assert (keys(pg), marks(pg)) == (set(), {})


@pytest.mark.parametrize("bad", [-DAY, 7, None, timedelta.max], ids=repr)
def test_an_impossible_age_is_refused(pg: str, bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="older_than="):
        purge_applied(sql_doors.engine(pg), bad)
    with pytest.raises(ValueError, match="batch="):
        purge_applied(sql_doors.engine(pg), DAY, batch=0)
    assert apply(pg, "k", OLD) == "done"


def test_a_horizon_that_is_not_there_permits_nothing(address: str) -> None:
    bind = sql_doors.engine(address)
    with bind.begin() as connection:
        connection.execute(sa.delete(HORIZON))
    try:
        with pytest.raises(errors.SchemaMissingError, match="fencing_horizon"):
            apply(address, "k", YOUNG)
        with pytest.raises(errors.SchemaMissingError, match="fencing_horizon"):
            purge(address)
        assert (keys(address), marks(address)) == (set(), {})
        found = [one.severity for one in SqlGuard().on(bind).diagnose() if one.check == "sql.horizon"]
        assert found == ["broken"]
    finally:
        with bind.begin() as connection:
            connection.execute(HORIZON.insert().values(one=1))
    [before] = [one.message for one in SqlGuard().on(bind).diagnose() if one.check == "sql.horizon"]
    assert "nothing was purged" in before
    purge(address)
    [after] = [one.message for one in SqlGuard().on(bind).diagnose() if one.check == "sql.horizon"]
    assert str((datetime.now(UTC) - 50 * DAY).year) in after


def test_a_database_whose_clock_is_far_off_is_not_purged(pg: str) -> None:
    apply(pg, "k", OLD)
    age(pg, "k")
    with psycopg.connect(pg, autocommit=True) as admin:
        admin.execute("create schema skewed")
        admin.execute(
            "create function skewed.clock_timestamp() returns timestamptz language sql as"
            " $$select pg_catalog.clock_timestamp() + interval '1 year'$$"
        )
        admin.execute("set search_path = skewed, pg_catalog, public")
        try:
            with admin.transaction(), pytest.raises(errors.FencingError, match="clock"):
                purge_applied(admin, 50 * DAY)
        finally:
            admin.execute("drop schema skewed cascade")
    assert keys(pg) == {"k"}
    assert apply(pg, "other", OLD) == "done"


# A purge and a write meet: who comes second waits, and then knows.


def replay(connection: Any, key: str = "k") -> Any:
    with connection, connection.transaction():
        connection.execute("select count(*) from ledger")  # the snapshot of the stricter levels
        return fenced_write(
            SqlGuard(lock_timeout=60).on(connection),
            "a",
            effect=lambda handle: do(handle, PUT, id="twice", owner=9) and None,
            token=token(9),
            once=key,
            began_at=OLD,
        )


@pytest.mark.parametrize("level", ISOLATION)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_replay_waits_for_the_purge_that_is_removing_its_record(
    pg: str, pool: ThreadPoolExecutor, level: str, end: str
) -> None:
    apply(pg, "k", OLD)
    age(pg, "k")
    late = psycopg.connect(with_isolation(pg, level), autocommit=True)
    with sql_doors.engine(pg).connect() as purging:
        assert purge_applied(purging, 50 * DAY).removed == 1
        replayed = pool.submit(replay, late)
        wait_until_blocked(pg, late.info.backend_pid)
        getattr(purging, end)()
    if end == "rollback":
        assert replayed.result(60) == "done"
    else:
        strict = (errors.KeyExpiredError, errors.ContentionError)
        with pytest.raises(errors.KeyExpiredError if level == "read committed" else strict):
            replayed.result(60)
    assert ledger(pg) == {"k": 5}


@pytest.mark.parametrize("level", ISOLATION)
def test_a_replay_whose_snapshot_is_older_than_the_purge(pg: str, level: str) -> None:
    """It neither sees that its record is gone nor, without a look that locks, the horizon."""
    apply(pg, "k", OLD)
    age(pg, "k")
    with psycopg.connect(with_isolation(pg, level), autocommit=True) as late:
        strict = (errors.KeyExpiredError, errors.ContentionError)
        with pytest.raises(errors.KeyExpiredError if level == "read committed" else strict), late.transaction():
            late.execute("select count(*) from fencing_applied")
            purge(pg)
            fenced_write(
                late, "a", effect=lambda handle: pytest.fail("applied twice"), token=token(9), once="k", began_at=OLD
            )
    assert (ledger(pg), marks(pg)) == ({"k": 5}, {"a": "shop/line-a/5"})


def test_writers_and_purges_do_not_wait_for_each_other(pg: str) -> None:
    """Under READ COMMITTED: a handler that takes long delays no purge, and a long purge no handler."""
    bind = sql_doors.engine(pg)
    with bind.connect() as writing, bind.connect() as purging, bind.connect() as third:
        assert fenced_write(writing, "a", effect=lambda handle: 1, token=token(5), once="k", began_at=YOUNG) == 1
        assert purge_applied(purging, 50 * DAY).removed == 0
        assert fenced_write(third, "b", effect=lambda handle: 2, token=token(5), once="k2", began_at=YOUNG) == 2
        for one in (third, purging, writing):
            one.commit()
    assert keys(pg) == {"k", "k2"}


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_replay_waits_for_the_purge_on_mariadb(
    mariadb_bank: str, mariadb: MariaDB, pool: ThreadPoolExecutor, level: str
) -> None:
    address = sql_doors.empty_mysql(mariadb_bank)
    apply(address, "k", OLD)
    age(address, "k")

    def work() -> Any:
        with sql_doors.engine(address, isolation_level=level).begin() as connection:
            connection.execute(sa.text("select count(*) from fencing_applied"))
            return fenced_write(
                SqlGuard(lock_timeout=60).on(connection),
                "a",
                effect=lambda handle: pytest.fail("applied twice"),
                token=token(9),
                once="k",
                began_at=OLD,
            )

    with sql_doors.engine(address).connect() as purging:
        assert purge_applied(purging, 50 * DAY).removed == 1
        replayed = pool.submit(work)
        mariadb.wait_until_blocked("the replay waits for a lock")
        purging.commit()
    with pytest.raises(errors.KeyExpiredError):
        replayed.result(60)
    assert ledger(address) == {"k": 5}


def test_a_purge_passes_over_a_record_that_is_in_use_on_mariadb(mariadb_bank: str) -> None:
    """It would wait for the writer, and the writer for the horizon."""
    address = sql_doors.empty_mysql(mariadb_bank)
    for key in ("idle", "used"):
        apply(address, key, OLD)
    age(address, "idle", "used")
    with sql_doors.engine(address).connect() as writing:
        call = {"effect": lambda handle: pytest.fail("applied twice"), "token": Token(9, "shop", "line-a")}
        assert fenced_write(writing, "a", once="used", **call) == "done"
        assert purge(address).removed == 1
        writing.commit()
    assert keys(address) == {"used"}
    assert purge(address).removed == 1


# As a person calls it.


def test_the_command(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["once", *arguments, "--target", sql_doors.sync_url(address)])
        output, error = capsys.readouterr()
        assert (ended.value.code or 0) == status, output + error
        return output + error

    apply(address, "k", OLD)
    age(address, "k")
    shown = json.loads(call("show", "k", "--json"))
    assert (shown["result"], shown["token"], shown["began_at"]) == ("done", "shop/line-a/5", OLD.isoformat())
    assert "result: done" in call("show", "k")
    assert "1 records would be removed, 0 would be left" in call(
        "purge", "--older-than", "50d", "--reason", "yearly", "--dry-run"
    )
    assert keys(address) == {"k"}
    done = json.loads(call("purge", "--older-than", "50d", "--reason", "yearly", "--json"))
    assert (done["removed"], done["left"], done["dry_run"]) == (1, 0, False)
    assert "no record of the key 'k'" in call("show", "k", status=1)
    assert "duration" in call("purge", "--older-than", "long", "--reason", "x", status=2)
