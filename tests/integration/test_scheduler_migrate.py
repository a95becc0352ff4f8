"""Migrations: by a role that may do little, onto what is there already, half-way, and beside other releases."""

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.jobs import Tables, installed

from scheduler import Scheduler
from scheduler._grants import grants
from scheduler._sql import Statements
from scheduler.errors import DatabaseError, NotMigratedError

Migrations = list[tuple[int, str, str]]
Known = Callable[[Migrations], None]

MORE: Migrations = [(2, "more", "create table {schema}.more (n integer)")]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """Have the code know further migrations from now on."""
    own = Statements.migrations.func

    def know(more: Migrations) -> None:
        monkeypatch.setattr(
            Statements,
            "migrations",
            property(lambda self: [*own(self), *((number, name, self.fill(text)) for number, name, text in more)]),
        )

    return know


@pytest.fixture
def role(pg_dsn: str) -> Iterator[str]:
    """A role that may do nothing, yet."""
    name = f"migrates_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute(f"create role {name} login")
        yield name
        owner.execute(f"drop owned by {name} cascade")
        owner.execute(f"drop role {name}")


def test_a_schema_that_was_made_for_a_role_is_filled_by_it(pg_dsn: str, role: str) -> None:
    """It need not be allowed to make others in that database."""
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute(f"create schema fencing authorization {role}")
    app = Scheduler(make_conninfo(pg_dsn, user=role))
    assert app.migrate()[0] == "0001_spine"
    app.task("note")(print)
    app.enqueue("note")
    assert app.run_until_idle().completed == 1
    app.close()
    with psycopg.connect(pg_dsn) as owner:
        assert owner.execute("select tableowner from pg_tables where tablename = 'job'").fetchall() == [(role,)]


def test_a_role_with_nothing_but_its_grants_finds_nothing_to_do(pg_dsn: str, role: str, known: Known) -> None:
    """As an application does that calls ``migrate()`` whenever it starts."""
    with installed(pg_dsn) as (_, tables):
        for line in grants(Statements("fencing"), role):
            tables.rows(line)
        app = Scheduler(make_conninfo(pg_dsn, user=role))
        assert app.migrate() == []
        known(MORE)
        with pytest.raises(DatabaseError, match="permission denied for schema fencing; migrate as a role that may"):
            app.migrate()
        app.close()


def test_a_migration_that_fails_leaves_nothing_of_itself_or_those_before_it(pg_dsn: str, known: Known) -> None:
    with installed(pg_dsn) as (app, tables):
        known([*MORE, (3, "wrong", "create table {schema}.after (n integer); select 1 / 0")])
        with pytest.raises(DatabaseError, match="division by zero"):
            app.migrate()
        assert tables.one("select coalesce(to_regclass('fencing.more'), to_regclass('fencing.after'))") is None
        assert tables.one("select array_agg(number) from {s}.migration") == [1]
        known(MORE)
        assert app.migrate() == ["0002_more"]


def test_code_does_not_work_on_tables_that_lack_what_it_knows(pg_dsn: str, known: Known) -> None:
    with installed(pg_dsn) as (app, _):
        app.task("note")(print)
        known(MORE)
        with pytest.raises(NotMigratedError, match="lacks migrations 0002; run `fencing migrate`"):
            app.run_worker()
        with pytest.raises(NotMigratedError):
            app.issued()
        (finding,) = app.diagnose()
        assert (finding.check, finding.severity, "0002" in finding.message) == ("migrations", "broken", True)


def test_older_code_goes_on_beside_newer_tables_and_the_doctor_says_so(pg_dsn: str, known: Known) -> None:
    """As in the middle of an upgrade."""
    with installed(pg_dsn) as (app, _):
        app.task("note")(print)
        known(MORE)
        app.migrate()
        known([])
        assert app.migrate() == []
        app.enqueue("note")
        assert app.run_until_idle().completed == 1
        finding = app.diagnose()[0]
        assert (finding.check, finding.severity) == ("migrations", "warning")
        assert finding.message.endswith("0002_more")


def test_a_server_that_is_too_old_is_named(pg_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 120_022)
    app, tables = Scheduler(pg_dsn), Tables(pg_dsn)
    with pytest.raises(DatabaseError, match="this server is PostgreSQL 12; the scheduler needs 13 or newer"):
        app.migrate()
    app.close()
    assert tables.rows("select from pg_namespace where nspname = 'fencing'") == []
    tables.connection.close()


def test_every_migration_has_a_number_of_its_own() -> None:
    numbers = [number for number, _, _ in Statements("x").migrations]
    assert numbers == list(range(1, len(numbers) + 1))
