"""Where people run it: behind PgBouncer, as a role with nothing but its grants, under another schema's name, beside
another scheduler, under the timeouts of a DBA."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support.certificates import CERTIFICATE, KEY
from support.jobs import Hand, Tables, Working, installed, installed_beside
from support.pgbouncer import pgbouncer
from support.servers import debian_postgres
from support.waiting import eventually

from fencing import Finding
from scheduler import Job, Scheduler
from scheduler._connect import Database, Link
from scheduler._doctor import diagnose
from scheduler._grants import grants
from scheduler._sql import Statements
from scheduler.console.embedded import Postgres
from scheduler.errors import DatabaseUnavailableError, ValueRefusedError


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_places")
    postgres.drop_database("scheduler_places")


@pytest.fixture
def role(postgres: Postgres, database: str) -> Iterator[str]:
    """A role that owns nothing and may do nothing, yet."""
    name = f"app_{uuid.uuid4().hex[:8]}"
    with postgres.connect("scheduler_places") as connection:
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
        connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def declare(app: Scheduler, ran: list[Any]) -> None:
    """Something of everything: jobs that complete, fail, are exclusive, limited, fenced by nothing, and a schedule."""

    @app.task("note")
    def note(job: Job) -> object:
        ran.append(job.args)
        return {"seen": job.args}

    @app.task("fail")
    def fail(job: Job) -> None:
        raise RuntimeError("on purpose")

    app.queue("mail", limit=1, acceptable_lag=60)
    app.schedule("often", "* * * * * *", tz="UTC", task="note", args="schedule", seconds=True)


def use_everything(app: Scheduler) -> None:
    app.enqueue("note", 1, key="one")
    app.enqueue("note", 2, key="two", unique="forever")
    app.enqueue("note", 3, exclusive="a")
    app.enqueue("note", 4, queue="mail")
    app.enqueue_many("note", [5, 6], priority=3)
    failing = app.enqueue("fail").id
    app.cancel(app.enqueue("note", "never").id, reason="a test")
    with app.lease("beside", ttl=30) as lease:
        assert lease.token.value > 0
    app.bury(failing, reason="a test")
    app.replay(failing, reason="a test")


def works(app: Scheduler, tables: Tables, ran: list[Any]) -> None:
    """A worker does its work there, and nothing that it does is refused."""
    problems: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if " failed (" in record.getMessage() and "attempt" not in record.getMessage():
                problems.append(record.getMessage())

    handler = Listening(logging.WARNING)
    logging.getLogger("scheduler").addHandler(handler)
    try:
        use_everything(app)
        with Working(app, queues=["default", "mail"], concurrency=2):
            eventually(lambda: {1, 2, 3, 4, 5, 6, "schedule"} <= set(ran), "everything has run", 40)
            app.measure()
            eventually(lambda: tables.one("select count(*) from {s}.job where status = 'leased'") == 0, "it is settled")
    finally:
        logging.getLogger("scheduler").removeHandler(handler)
    assert problems == []
    assert "never" not in ran


def test_behind_pgbouncer_in_transaction_mode(database: str, caplog: pytest.LogCaptureFixture) -> None:
    with installed_beside(database) as (_, tables), pgbouncer(database) as address:
        app = Scheduler(address, schema=tables.schema)
        ran: list[Any] = []
        declare(app, ran)
        app.measure()
        assert "behind a pooler" not in caplog.text, "who runs no worker loses nothing"
        works(app, tables, ran)
        app.close()
        assert sum("behind a pooler" in record.getMessage() for record in caplog.records) == 1
        # What another application is given afterwards is a session in which nothing was set.
        with psycopg.connect(address, prepare_threshold=None) as connection:
            shown = connection.execute(
                "select current_setting('enable_seqscan'), current_setting('plan_cache_mode'), current_setting('jit'),"
                " (select count(*) from pg_prepared_statements)"
            ).fetchone()
            before = connection.execute(
                "select reset_val from pg_settings where name in ('enable_seqscan', 'plan_cache_mode', 'jit') order by"
                " array_position(array['enable_seqscan', 'plan_cache_mode', 'jit'], name)"
            ).fetchall()
        assert shown == (*(row[0] for row in before), 0)
        with Link(Database(address), "doctor").use("look") as connection:
            findings = {one.check: one for one in diagnose(connection, Statements(tables.schema))}
        assert findings["pooler"].severity == "warning"


def test_settings_and_the_claim_s_durability_hold_in_each_transaction_behind_a_pooler(database: str) -> None:
    with installed_beside(database) as (_, tables), pgbouncer(database) as address:
        tables.rows("alter role current_user set synchronous_commit = off")
        try:
            link = Link(Database(address), "claim")
            with link.use("look") as connection:
                shown = connection.execute(
                    "select current_setting('synchronous_commit'), current_setting('enable_seqscan'),"
                    " current_setting('transaction_isolation')"
                ).fetchone()
            assert shown == ("on", "off", "read committed")
            link.close()
        finally:
            tables.rows("alter role current_user reset synchronous_commit")


def people(app: Scheduler, tables: Tables) -> None:
    """What people do with jobs, and what is left of them in the end."""
    app.task("act")(print)
    assert app.enqueue_many("act", [1, 2], key=str, unique="forever", queue="acts") == 2
    number = app.enqueue("act", queue="acts").id
    hand = Hand(app._database.conninfo, {"act": 30.0}, queues=("acts",), schema=tables.schema)
    assert len(hand.claim()) == 3
    hand.close()
    assert app.cancel(number, reason="x", actor="ann").fenced
    app.replay(number, reason="x", actor="ann")
    app.bury(number, reason="x", actor="ann")
    assert app.replay_dead(reason="x", actor="ann").ids == [number]
    assert app.job(number).status == "ready"
    app.cancel(number, reason="x", actor="ann")
    tables.move_clock(4000 * 86400)
    assert app.prune().jobs >= 1
    tables.move_clock(0)


def test_a_role_with_the_printed_grants_and_no_others(database: str, role: str) -> None:
    with installed_beside(database) as (_, tables):
        for line in grants(Statements(tables.schema), role):
            tables.rows(line)
        app = Scheduler(database.replace("postgres@", f"{role}@"), schema=tables.schema)
        ran: list[Any] = []
        declare(app, ran)
        lineage = tables.one("select lineage from {s}.issuer")
        works(app, tables, ran)
        assert tables.one("select lineage from {s}.issuer") == lineage, "to both roles it is the same issuer"
        app.run_until_idle(["default", "mail"])
        people(app, tables)
        app.close()
        mine = psycopg.connect(database.replace("postgres@", f"{role}@"), autocommit=True)
        number = "select setval('{s}.job_id_seq', 1)"
        for refused in (
            "update {s}.act set actor = 'me'",
            "drop table {s}.job",
            "create table {s}.more (n int)",
            number,
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                mine.execute(refused.replace("{s}", tables.schema).encode())
        mine.close()


def test_the_issuer_changes_its_lineage_as_that_role_too(database: str, role: str) -> None:
    with installed_beside(database) as (owner, tables):
        for line in grants(Statements(tables.schema), role):
            tables.rows(line)
        owner.task("note")(print)
        owner.enqueue("note")
        tables.rows("update {s}.issuer set identity = 'another server'")
        hand = Hand(database.replace("postgres@", f"{role}@"), {"note": 30.0}, schema=tables.schema)
        assert len(hand.claim()) == 1
        hand.close()


def test_under_the_timeouts_of_a_dba(database: str, role: str) -> None:
    with installed_beside(database) as (_, tables):
        for line in grants(Statements(tables.schema), role):
            tables.rows(line)
        for setting in ("statement_timeout = '15s'", "idle_in_transaction_session_timeout = '7s'", "jit = on"):
            tables.rows(f"alter role {role} set {setting}")
        address = database.replace("postgres@", f"{role}@")
        app = Scheduler(address, schema=tables.schema)
        ran: list[Any] = []
        declare(app, ran)
        works(app, tables, ran)
        app.close()
        with Link(Database(address), "claim").use("look") as connection:
            names = ("statement_timeout", "idle_in_transaction_session_timeout", "jit")
            shown = [connection.execute("select current_setting(%s)", (name,)).fetchall()[0][0] for name in names]
        assert shown == ["15s", "7s", "off"], "the shorter time stays; ours is 10 s"


def test_a_pooler_that_is_stated_is_not_looked_for(database: str) -> None:
    """One that passes the server's process id on looks like a direct connection, one in session mode is like one."""
    with installed_beside(database) as (_, tables), pgbouncer(database) as address:
        for where, pooled in ((database, True), (address, False)):
            connection = Database(where, pooled).connect("claim")
            assert (connection.prepare_threshold is None) == pooled
            connection.close()
        app = Scheduler(database, schema=tables.schema, pooled=True)
        ran: list[Any] = []
        declare(app, ran)
        works(app, tables, ran)
        app.close()
    with pytest.raises(TypeError, match="pooled= takes True, False or None, not 'yes'"):
        Scheduler(database, pooled="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("pooled", [False, True])
def test_however_a_role_writes_its_dates(database: str, role: str, pooled: bool) -> None:
    with installed_beside(database) as (_, tables), ExitStack() as stack:
        for line in grants(Statements(tables.schema), role):
            tables.rows(line)
        for setting in ("datestyle = 'SQL, DMY'", "intervalstyle = 'iso_8601'", "timezone = 'Asia/Kathmandu'"):
            tables.rows(f"alter role {role} set {setting}")
        address = database.replace("postgres@", f"{role}@")
        if pooled:
            address = stack.enter_context(pgbouncer(address))
        app = Scheduler(address, schema=tables.schema)
        ran: list[Any] = []
        declare(app, ran)
        works(app, tables, ran)
        (often,) = app.list_schedules()
        assert often.created_at <= datetime.now(UTC)
        app.close()


def test_in_a_database_that_is_not_in_utf_8(postgres: Postgres) -> None:
    name = f"latin_{uuid.uuid4().hex[:8]}"
    with postgres.connect() as connection:
        connection.autocommit = True
        connection.execute(
            sql.SQL("create database {} encoding 'LATIN1' locale 'C' template template0").format(sql.Identifier(name))
        )
    with installed(postgres.dsn(name)) as (app, tables):
        ran: list[Any] = []

        @app.task("note")
        def note(job: Job) -> object:
            ran.append(job.args)
            return {"seen": "ß"}

        app.schedule("jährlich", "0 0 1 1 *", tz="UTC", task="note", args="ü")
        number = app.enqueue("note", {"ä": "ö"}, key="schlüssel").id
        assert app.run_until_idle().completed == 1
        assert ran == [{"ä": "ö"}]
        assert app.job(number).result == {"seen": "ß"}
        assert app.sync_schedules() == {"jährlich": "unchanged"}
        with pytest.raises(ValueRefusedError, match='no equivalent in encoding "LATIN1"'):
            app.enqueue("note", "€")
        with pytest.raises(ValueRefusedError, match='no equivalent in encoding "LATIN1"'):
            app.enqueue_many("note", ["ä", "€"])
        assert app.enqueue_many("note", ["ä", "ß"], exclusive="ö") == 2
        assert app.run_until_idle().completed == 2
        assert ran[1:] == ["ä", "ß"]
        assert tables.states() == {"completed": 3}
    postgres.drop_database(name)


def test_two_schedulers_in_one_database_do_not_meet(database: str) -> None:
    with installed(database, "first") as (one, first), installed(database, "second") as (two, second):
        ran: list[Any] = []
        for app, name in ((one, "first"), (two, "second")):
            app.task("note")(lambda job, name=name: ran.append((name, job.args)))
            app.enqueue("note", name, key="the same", exclusive="the same")
        assert (one.run_until_idle().completed, two.run_until_idle().completed) == (1, 1)
        assert sorted(ran) == [("first", "first"), ("second", "second")]
        assert first.one("select name from {s}.issuer") != second.one("select name from {s}.issuer")


def test_the_doctor_warns_of_a_transaction_that_keeps_dead_rows(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with installed_beside(database) as (app, _), psycopg.connect(database) as reader:

        def finding() -> Finding:
            (found,) = [one for one in app.diagnose() if one.check == "open transactions"]
            return found

        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select 1")
        assert finding().severity == "ok", "for a moment anybody may"
        monkeypatch.setattr("scheduler._doctor.OLD_TRANSACTION", 0.0)
        assert (finding().severity, "the oldest has been open" in finding().message) == ("warning", True)
        reader.rollback()
        assert finding().severity == "ok"


def test_tls_options_go_through_the_address() -> None:
    text = Database("postgresql://me@host/db?sslmode=verify-full&sslrootcert=/etc/ca.pem&sslcert=c&sslkey=k").conninfo
    for part in ("sslmode=verify-full", "sslrootcert=/etc/ca.pem", "sslcert=c", "sslkey=k", "tcp_user_timeout="):
        assert part in text


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Postgres]:
    """A server that speaks TLS. The wheel's does not."""
    with Postgres(bindir=debian_postgres()) as server:
        for name, text in (("server.crt", CERTIFICATE), ("server.key", KEY)):
            path = server.data / name
            path.write_text(text)
            path.chmod(0o600)
            server._place.give(path)
        with server.connect() as connection:
            connection.execute("alter system set ssl = on")
        yield server.restart()


def test_every_session_of_a_worker_is_encrypted_and_the_server_is_who_it_says(
    encrypted: Postgres, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_text(CERTIFICATE)
    where = f"{encrypted.dsn('postgres')}?sslmode=verify-full&hostaddr=127.0.0.1&sslrootcert={authority}"
    ours = where.replace("@127.0.0.1:", "@localhost:")
    seen: dict[str, bool] = {}
    with installed(ours) as (app, tables):

        @app.task("look")
        def look(job: Job) -> None:
            rows = tables.rows(
                "select application_name, ssl from pg_stat_ssl join pg_stat_activity using (pid)"
                " where application_name like 'fencing %%'"
            )
            seen.update({row["application_name"]: row["ssl"] for row in rows})

        app.enqueue("look")
        app.run_until_idle()
        assert {"fencing app", "fencing claim"} <= set(seen)
        assert set(seen.values()) == {True}
    with pytest.raises(DatabaseUnavailableError, match="certificate"):
        Scheduler(where.replace("@127.0.0.1:", "@elsewhere:")).migrate()


@pytest.mark.parametrize(("days", "severity"), [(299, "ok"), (301, "warning")])
def test_the_doctor_warns_before_the_issuer_s_year_is_over(database: str, days: int, severity: str) -> None:
    with installed_beside(database) as (_, tables):
        tables.rows("update {s}.issuer set floor = floor - (%(days)s::bigint * 86400000 << 11)", days=days)
        with Link(Database(database), "doctor").use("look") as connection:
            findings = {one.check: one for one in diagnose(connection, Statements(tables.schema))}
        assert findings["issuer"].severity == severity, findings["issuer"]
        assert findings["pooler"].severity == "ok"
