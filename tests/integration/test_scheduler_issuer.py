"""The issuer and its installation: a change of identity begins a new lineage above everything before, or is refused."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.jobs import Hand, Tables, installed, installed_beside
from support.locks import wait_until_blocked

from scheduler import Scheduler
from scheduler._connect import Database
from scheduler._issuer import ensure_current, lock_state
from scheduler._sql import Statements
from scheduler._store import Settled
from scheduler.console.embedded import Postgres
from scheduler.errors import IssuerError

YEAR = 366 * 24 * 3600


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_issuer")
    postgres.drop_database("scheduler_issuer")


@pytest.fixture
def ground(request: pytest.FixtureRequest) -> Iterator[tuple[Scheduler, Tables]]:
    """In a schema of its own, or in a database of its own where the test is about the database as a whole."""
    own = "pg_dsn" in request.fixturenames
    opened = (
        installed(request.getfixturevalue("pg_dsn")) if own else installed_beside(request.getfixturevalue("database"))
    )
    with opened as (app, tables):
        app.task("work", lease=30)(print)
        yield app, tables


@pytest.fixture
def hand(app: Scheduler, tables: Tables) -> Iterator[Hand]:
    app.enqueue_many("work", range(50))
    one = Hand(tables.dsn, {"work": 30}, schema=tables.schema)
    yield one
    one.close()


def issuer(tables: Tables) -> dict[str, object]:
    (row,) = tables.rows("select * from {s}.issuer")
    return row


def pretend_other_server(tables: Tables, part: int = 2) -> None:
    """The recorded identity differs in one of its parts, as if another server had written it."""
    parts = str(issuer(tables)["identity"]).split("/")
    assert len(parts) == 6
    parts[part] = "other"
    tables.rows("update {s}.issuer set identity = %(identity)s", identity="/".join(parts))


# -- a change of identity


@pytest.mark.parametrize(
    "part", range(6), ids=["system", "timeline", "postmaster start", "database", "schema", "sequence"]
)
def test_any_part_of_the_identity_that_changes_begins_a_new_lineage_above_every_earlier_token(
    tables: Tables, hand: Hand, part: int
) -> None:
    before = hand.claim_one()
    assert issuer(tables)["lineage"] == before.lineage
    pretend_other_server(tables, part)
    after = hand.claim_one()
    assert after.token > before.token
    assert after.lineage != before.lineage
    assert issuer(tables)["lineage"] == after.lineage
    same = hand.claim_one()
    assert same.lineage == after.lineage
    assert same.token > after.token


def test_the_holder_goes_on_under_the_lineage_of_its_claim(tables: Tables, hand: Hand) -> None:
    held = hand.claim_one()
    pretend_other_server(tables)
    hand.claim_one()
    assert tables.job(held.id)["lineage"] == held.lineage
    assert hand.renew(held) == {held.token: True}
    assert hand.complete(held) is Settled.OK
    assert tables.attempts(held.id)[0]["lineage"] == held.lineage


def test_a_new_lineage_starts_at_the_clock_even_if_the_sequence_fell_far_behind_it(tables: Tables, hand: Hand) -> None:
    before = hand.claim_one()
    tables.rows("select setval('{s}.token', 5)")  # what an old copy of the data would say
    pretend_other_server(tables)
    assert hand.claim_one().token > before.token


def test_a_clock_that_went_back_does_not_take_the_tokens_with_it(tables: Tables, hand: Hand) -> None:
    before = hand.claim_one()
    tables.set_clock("timestamptz '2025-06-01 00:00:00+00'")
    tables.rows("update {s}.job set due_at = timestamptz '2025-01-01 00:00:00+00'")
    pretend_other_server(tables)
    assert hand.claim_one().token > before.token


@pytest.mark.parametrize(
    ("clock", "says"),
    [
        (f"clock_timestamp() + interval '{YEAR + 3600} seconds'", "more than a year past the issuer's last change"),
        ("timestamptz '2165-01-01 00:00:00+00'", "beyond the year 2164"),
    ],
)
def test_a_clock_that_cannot_be_right_is_refused_and_nothing_is_issued(
    tables: Tables, hand: Hand, clock: str, says: str
) -> None:
    before = issuer(tables), tables.states()
    tables.set_clock(clock)
    pretend_other_server(tables)
    changed = issuer(tables)
    with pytest.raises(IssuerError, match=says):
        hand.claim()
    assert issuer(tables) == changed
    assert tables.states() == before[1]
    tables.move_clock(0)
    assert hand.claim_one().lineage != before[0]["lineage"], "with the right clock it goes on by itself"


def test_a_clock_that_jumps_while_the_identity_stays_changes_nothing_about_tokens(tables: Tables, hand: Hand) -> None:
    first = hand.claim_one()
    tables.move_clock(2 * YEAR)
    second = hand.claim_one()
    assert (second.token, second.lineage) == (first.token + 1, first.lineage)


def test_of_many_claimers_that_notice_a_change_at_once_one_makes_it(app: Scheduler, tables: Tables) -> None:
    app.enqueue_many("work", range(50))
    tables.rows("create table {s}.changes (lineage text)")
    tables.rows(
        "create function {s}.note() returns trigger language plpgsql as"
        " 'begin insert into {s}.changes values (new.lineage); return new; end'"
    )
    tables.rows("create trigger note after update of lineage on {s}.issuer for each row execute function {s}.note()")
    hands = [Hand(tables.dsn, {"work": 30}, owner=f"hand {n}", schema=tables.schema) for n in range(6)]
    pids = [one.on("claim").info.backend_pid for one in hands]
    pretend_other_server(tables)
    with psycopg.connect(tables.dsn) as door, ThreadPoolExecutor(len(hands)) as pool:
        door.execute(f"select from {tables.schema}.issuer for update".encode())
        claims = [pool.submit(one.claim, 3) for one in hands]
        for pid in pids:
            wait_until_blocked(tables.dsn, pid)
        door.rollback()
        jobs = [job for claim in claims for job in claim.result(60)]
    assert len({job.id for job in jobs}) == len({job.token for job in jobs}) == len(jobs) > 0
    assert [row["lineage"] for row in tables.rows("select lineage from {s}.changes")] == [jobs[0].lineage]
    assert {job.lineage for job in jobs} == {issuer(tables)["lineage"]}
    for one in hands:
        one.close()


def test_an_identity_that_never_rests_is_an_error_not_an_endless_loop(tables: Tables, hand: Hand) -> None:
    tables.rows(
        "create or replace function {s}.identity() returns text language sql volatile as 'select random()::text'"
    )
    with pytest.raises(IssuerError, match="changed three times in a row"):
        hand.claim()
    assert tables.states() == {"ready": 50}


def test_nothing_changes_while_the_server_stays_what_it_was(tables: Tables, hand: Hand) -> None:
    before = issuer(tables)
    statements, connection = hand.statements, hand.on("claim")
    assert not ensure_current(connection, statements)
    with connection.transaction():
        state, clock_ms = lock_state(connection, statements)
    assert state.current
    assert state.floor <= clock_ms * 2048
    assert issuer(tables) == before


# -- copies


def test_a_copy_of_the_database_issues_other_tokens_and_the_original_goes_on(
    postgres: Postgres, pg_dsn: str, app: Scheduler, tables: Tables, hand: Hand
) -> None:
    before = [hand.claim_one() for _ in range(3)][-1]
    hand.close()
    app.close()
    tables.connection.close()
    tables.connect_anew()
    name = tables.dsn.rpartition("/")[2]
    copy = Hand(postgres.create_database(f"{name}_copy", template=name), {"work": 30}, owner="copy")
    original = Hand(tables.dsn, {"work": 30}, owner="original")
    try:
        theirs, ours = copy.claim_one(), original.claim_one()
        assert theirs.id == ours.id
        assert theirs.lineage != ours.lineage == before.lineage
        assert ours.token == before.token + 1
        assert theirs.token > before.token
        assert theirs.token != ours.token
    finally:
        copy.close()
        original.close()
        postgres.drop_database(f"{name}_copy")


def test_a_sequence_that_was_restored_with_an_old_value_begins_a_new_lineage(tables: Tables, hand: Hand) -> None:
    before = hand.claim_one()
    tables.rows("drop sequence {s}.token")
    tables.rows("create sequence {s}.token as bigint cache 1 start 7")
    hand.close()
    again = Hand(tables.dsn, {"work": 30}, schema=tables.schema)
    after = again.claim_one()
    again.close()
    assert after.token > before.token
    assert after.lineage != before.lineage


# -- installation


def test_a_migration_is_applied_once_however_many_processes_bring_it(pg_dsn: str) -> None:
    start = threading.Barrier(5)

    def migrate(_: int) -> list[str]:
        app = Scheduler(pg_dsn)
        start.wait()
        applied = app.migrate()
        app.close()
        return applied

    with ThreadPoolExecutor(5) as pool:
        applied = list(pool.map(migrate, range(5)))
    assert [names for names in applied if names] == [[f"{n:04d}_{name}" for n, name, _ in Statements("x").migrations]]
    tables = Tables(pg_dsn)
    assert len(tables.rows("select * from {s}.issuer")) == 1
    tables.connection.close()


def test_two_installs_never_compare_whatever_they_are_called(pg_dsn: str) -> None:
    names = set()
    for schema in ("staging", "production"):
        app = Scheduler(pg_dsn, schema=schema)
        app.migrate(issuer="shop")
        app.close()
        names.add(str(issuer(Tables(pg_dsn, schema))["name"]))
    assert len(names) == 2
    assert all(name.startswith("shop-") for name in names)


@pytest.mark.parametrize("name", ["Shop", "a/b", "x" * 55, "café", " "])
def test_an_issuers_name_that_no_token_could_carry_is_refused_and_nothing_is_made(pg_dsn: str, name: str) -> None:
    app = Scheduler(pg_dsn)
    with pytest.raises(ValueError, match="issuer's name"):
        app.migrate(issuer=name)
    app.close()
    tables = Tables(pg_dsn)
    assert tables.rows("select 1 from pg_namespace where nspname = 'fencing'") == []
    tables.connection.close()


def test_an_ordinary_role_sees_the_same_identity_as_a_superuser_and_can_issue(
    postgres: Postgres, pg_dsn: str, tables: Tables, hand: Hand
) -> None:
    name = tables.dsn.rpartition("/")[2]
    tables.rows("drop role if exists plain")
    tables.rows("create role plain login")
    try:
        tables.rows("grant usage on schema {s} to plain")
        tables.rows("grant all on all tables in schema {s} to plain")
        tables.rows("grant all on all sequences in schema {s} to plain")
        before = hand.claim_one()
        plain = Hand(postgres.dsn(name, "plain"), {"work": 30}, owner="plain")
        after = plain.claim_one()
        assert (after.token, after.lineage) == (before.token + 1, before.lineage)
        tables.rows("revoke execute on function pg_control_system() from public")
        assert plain.claim_one().token > after.token, "what is withheld is left out of the identity"
        plain.close()
    finally:
        tables.rows("grant execute on function pg_control_system() to public")
        tables.rows("drop owned by plain")
        tables.rows("drop role plain")


# -- durability


@pytest.mark.parametrize(
    ("given", "used"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
def test_a_claim_is_durable_before_its_token_leaves_whatever_the_default_is(
    pg_dsn: str, tables: Tables, given: str, used: str
) -> None:
    name = tables.dsn.rpartition("/")[2]
    tables.rows(f"alter database {name} set synchronous_commit = {given}")
    for role in ("claim", "app", "lease", "settle"):
        with Database(tables.dsn).connect(role) as connection:
            assert connection.execute("show synchronous_commit").fetchone() == (used,)


def test_a_database_whose_default_is_serializable_changes_nothing_for_the_scheduler(
    pg_dsn: str, tables: Tables
) -> None:
    name = tables.dsn.rpartition("/")[2]
    tables.rows(f"alter database {name} set default_transaction_isolation = 'serializable'")
    for role in ("claim", "materialise"):
        with Database(tables.dsn).connect(role) as connection:
            assert connection.execute("show transaction_isolation").fetchone() == ("read committed",)


def test_a_worker_that_is_stopped_inside_a_transaction_does_not_keep_its_rows_for_ever(tables: Tables) -> None:
    """Idle in a transaction, a session is ended by the server, and what it had locked can be claimed again."""
    for role in ("claim", "settle", "heart", "rescue", "materialise", "lease", "app"):
        with Database(tables.dsn).connect(role) as connection:
            assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("10s",)
