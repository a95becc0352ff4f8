"""The embedded PostgreSQL does what the tests of failover and durability need of it."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from support.processes import processes_in
from support.servers import debian_postgres
from support.waiting import eventually

from scheduler.console.embedded import Postgres, ServerNotInstalledError, ServerUnavailableError

PgServer = Callable[..., Postgres]


def ask(server: Postgres | str, statement: str) -> object:
    dsn = server if isinstance(server, str) else server.dsn()
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def do(server: Postgres | str, statement: str) -> None:
    dsn = server if isinstance(server, str) else server.dsn()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def segments() -> set[int]:
    """The ids of the System V shared memory segments of the whole machine."""
    return {int(line.split()[1]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def segment_of(server: Postgres) -> int:
    return int((server.data / "postmaster.pid").read_text().splitlines()[6].split()[1])


def test_it_is_durable_and_speaks_one_language(pg_server: PgServer) -> None:
    server = pg_server()
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "server_encoding": "UTF8",
        "lc_messages": "C",
        "TimeZone": "UTC",
        "listen_addresses": "127.0.0.1",
    }
    assert {name: ask(server, f"show {name}") for name in expected} == expected
    server.close()


def test_it_tells_its_version(postgres: Postgres) -> None:
    assert ask(postgres, "show server_version_num") == str(postgres.version_number)
    assert str(ask(postgres, "show server_version")).split()[0] == postgres.version


def test_addresses_name_database_and_role_whatever_they_contain(postgres: Postgres) -> None:
    name = 'o\'Brien/?#@ "ü" 100%'
    dsn = postgres.create_database(name)
    try:
        role = 'a role: "x"@/?'
        do(postgres, 'create role "a role: ""x""@/?" login')
        assert ask(dsn, "select current_database()") == name
        for socket in (False, True):
            with psycopg.connect(postgres.dsn(name, role, socket=socket)) as connection:
                assert connection.execute("select current_database(), current_user").fetchone() == (name, role)
                address = connection.execute("select inet_client_addr() is null").fetchone()
                assert address == (socket,)
    finally:
        postgres.drop_database(name)


def test_a_database_is_a_copy_of_its_template(postgres: Postgres) -> None:
    do(postgres.create_database("pattern"), "create table here as select 42 as n")
    try:
        assert ask(postgres.create_database("copied", template="pattern"), "select n from here") == 42
    finally:
        postgres.drop_database("copied")
        postgres.drop_database("pattern")


def test_settings_apply_and_can_be_altered_later(pg_server: PgServer) -> None:
    server = pg_server(
        settings={"work_mem": "5MB", "log_min_messages": "warning", "search_path": "it's, a\\b", "jit": False}
    )
    assert ask(server, "show work_mem") == "5MB"
    assert ask(server, "show search_path") == "it's, a\\b"
    assert ask(server, "show jit") == "off"
    do(server, "alter system set work_mem = '6MB'")
    server.restart()
    assert ask(server, "show work_mem") == "6MB"


@pytest.mark.parametrize("settings", [{"work_mem; drop": "1"}, {"work_mem": "1MB\nfsync = off"}])
def test_a_setting_is_one_line_under_one_name(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="PostgreSQL setting"):
        Postgres(settings=settings).start()


def test_a_failed_start_shows_the_end_of_the_log_and_leaves_nothing() -> None:
    server = Postgres(settings={"work_mem": "a lot"})
    with pytest.raises(ServerUnavailableError, match=r'(?s)did not start.*invalid value for parameter "work_mem"'):
        server.start()
    assert not server.running
    with pytest.raises(RuntimeError, match="has no directory"):
        _ = server.directory


def test_a_failed_restart_keeps_the_data(pg_server: PgServer) -> None:
    server = pg_server()
    do(server, "create table kept as select 1 as n")
    do(server, "alter system set shared_preload_libraries = 'nowhere'")
    with pytest.raises(ServerUnavailableError, match="nowhere"):
        server.restart()
    (server.data / "postgresql.auto.conf").write_text("")
    server.start_again()
    assert ask(server, "select n from kept") == 1


def test_a_restart_ends_connections_and_keeps_address_and_data(pg_server: PgServer) -> None:
    server = pg_server()
    dsn = server.dsn()
    do(dsn, "create table kept as select 1 as n")
    with psycopg.connect(dsn) as connection:
        connection.execute("select 1")
        server.restart()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert server.dsn() == dsn
    assert ask(dsn, "select n from kept") == 1
    assert "database system was shut down" in server.log


def test_a_smart_stop_waits_for_clients_and_its_time_limit_kills(pg_server: PgServer) -> None:
    server = pg_server()
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("select 1")
        stopping = threading.Thread(target=server.stop, args=("smart",))
        stopping.start()
        eventually(lambda: "received smart shutdown request" in server.log, "the server was asked to stop")
        assert connection.execute("select 1").fetchone() == (1,)
        connection.close()
        stopping.join()
    assert not server.running
    server.start_again()
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("select 1")
        server.stop("smart", timeout=0.2)
        assert not server.running
        connection.close()
    assert processes_in(server.data) == {}


def test_what_was_committed_survives_kill_9_and_what_was_not_does_not(pg_server: PgServer) -> None:
    server = pg_server()
    dsn = server.dsn()
    do(dsn, "create table kept (n int)")
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into kept values (1)")
        connection.commit()
        connection.execute("insert into kept values (2)")
        os.kill(connection.info.backend_pid, signal.SIGSTOP)  # so that it does not end by itself with its parent
        server.kill()
        connection.close()
    assert not server.running
    assert processes_in(server.data) == {}
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    server.start_again()
    assert "was not properly shut down; automatic recovery in progress" in server.log
    assert ask(dsn, "select array_agg(n) from kept") == [1]


def test_a_killed_server_leaves_no_shared_memory() -> None:
    """Neither in /dev/shm, where it would be a file that nobody removes, nor as a System V segment."""
    with Postgres() as server:
        for pid in server.pids:
            with contextlib.suppress(OSError):  # a connection's process that has ended meanwhile
                assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()
        segment = segment_of(server)
        assert segment in segments()
        server.kill()
        assert segment in segments()
    assert segment not in segments()


def test_a_base_backup_starts_as_often_as_wanted_and_stays_as_it_is(pg_server: PgServer, tmp_path: Path) -> None:
    """In a directory of the test's own, which the server's user may not even enter."""
    server = pg_server(settings={"work_mem": "5MB"})
    do(server, "create table kept as select 1 as n")
    backup = server.base_backup(tmp_path / "backup")
    do(server, "update kept set n = 2")
    first = pg_server(backup=backup)
    do(first, "update kept set n = 3")
    second = pg_server(backup=backup, settings={"work_mem": "6MB"})
    assert [ask(s, "select n from kept") for s in (server, first, second)] == [2, 3, 1]
    assert [ask(s, "show work_mem") for s in (server, first, second)] == ["5MB", "5MB", "6MB"]
    assert len({s.port for s in (server, first, second)}) == 3
    identifiers = {ask(s, "select system_identifier from pg_control_system()") for s in (server, first, second)}
    assert len(identifiers) == 1


def test_the_files_of_a_stopped_server_start_too(pg_server: PgServer) -> None:
    server = pg_server()
    do(server, "create table kept as select 1 as n")
    server.stop()
    copy = pg_server(backup=server.data)
    assert ask(copy, "select n from kept") == 1


def test_a_directory_that_is_no_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailableError, match=r"is not a PostgreSQL data directory.*base_backup\(\)"):
        Postgres(backup=tmp_path).start()


def test_a_backup_of_a_stopped_server_tells_what_pg_basebackup_said(pg_server: PgServer, tmp_path: Path) -> None:
    server = pg_server()
    server.stop()
    with pytest.raises(ServerUnavailableError, match=r"(?s)pg_basebackup ended with 1.*connection to server"):
        server.base_backup(tmp_path / "backup")


def test_a_standby_follows_refuses_writes_and_is_promoted(pg_server: PgServer) -> None:
    primary = pg_server()
    do(primary, "create table kept (n int)")
    with primary.standby() as standby:
        do(primary, "insert into kept values (1)")
        standby.wait_until_caught_up()
        assert ask(standby, "select n from kept") == 1
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            do(standby, "insert into kept values (2)")
        primary.kill()
        standby.promote()
        do(standby, "insert into kept values (2)")
        assert ask(standby, "select timeline_id from pg_control_checkpoint()") in (1, 2)  # stale until a checkpoint
        assert ask(standby, "select substr(pg_walfile_name(pg_current_wal_lsn()), 8, 1)") == "2"
        standby.restart()
        assert ask(standby, "select count(*) from kept") == 2
        with standby.standby() as next_one:
            next_one.wait_until_caught_up()
            assert ask(next_one, "select count(*) from kept") == 2


def test_a_standby_that_stopped_receiving_loses_by_its_promotion(pg_server: PgServer) -> None:
    primary = pg_server()
    do(primary, "create table kept (n int)")
    with primary.standby() as standby:
        standby.wait_until_caught_up()
        standby.stop_receiving()
        do(primary, "insert into kept values (1)")
        with pytest.raises(TimeoutError, match="the standby applies the log up to"):
            standby.wait_until_caught_up(timeout=0.3)
        standby.promote()
        assert ask(standby, "select count(*) from kept") == 0
        with standby.standby() as next_one:
            do(standby, "insert into kept values (2)")
            next_one.wait_until_caught_up()
            assert ask(next_one, "select n from kept") == 2


def test_a_standby_that_stopped_receiving_can_follow_again(pg_server: PgServer) -> None:
    primary = pg_server()
    do(primary, "create table kept (n int)")
    with primary.standby() as standby:
        standby.stop_receiving()
        do(primary, "insert into kept values (1)")
        standby.resume_receiving()
        standby.wait_until_caught_up()
        assert ask(standby, "select count(*) from kept") == 1


def test_a_standby_that_only_paused_loses_nothing(pg_server: PgServer) -> None:
    primary = pg_server()
    do(primary, "create table kept (n int)")
    with primary.standby() as standby:
        standby.wait_until_caught_up()
        standby.pause_replay()
        do(primary, "insert into kept values (1)")
        assert ask(standby, "select count(*) from kept") == 0
        standby.resume_replay()
        standby.wait_until_caught_up()
        standby.pause_replay()
        do(primary, "insert into kept values (2)")
        written = ask(primary, "select pg_current_wal_flush_lsn()::text")
        eventually(
            lambda: ask(standby, f"select pg_last_wal_receive_lsn() >= '{written}'"), "the standby has received it"
        )
        standby.promote()
        assert ask(standby, "select count(*) from kept") == 2


def test_two_standbys_of_one_primary_are_promoted_one_after_the_other(pg_server: PgServer) -> None:
    primary = pg_server()
    with primary.standby(name="one") as one, primary.standby(name="other") as other:
        names = "select array_agg(application_name::text order by 1) from pg_stat_replication"
        eventually(lambda: ask(primary, names) == ["one", "other"], "both follow")
        for standby in (one, other):
            standby.promote()
            do(standby, "create table leads (n int)")


def test_a_synchronous_standby_is_waited_for(pg_server: PgServer) -> None:
    primary = pg_server()
    do(primary, "create table kept (n int)")
    with primary.standby(name="twin") as standby, psycopg.connect(primary.dsn(), autocommit=True) as writer:
        do(primary, "alter system set synchronous_standby_names = 'twin'")
        do(primary, "select pg_reload_conf()")
        state = "select sync_state from pg_stat_replication"
        eventually(lambda: ask(primary, state) == "sync", "the standby is synchronous")
        standby.stop_receiving()
        writing = threading.Thread(target=writer.execute, args=("insert into kept values (1)",))
        writing.start()
        waits = f"select wait_event from pg_stat_activity where pid = {writer.info.backend_pid}"
        eventually(lambda: ask(primary, waits) == "SyncRep", "the commit waits for the standby")
        standby.resume_receiving()
        writing.join()
        standby.wait_until_caught_up()
        assert ask(standby, "select count(*) from kept") == 1


def test_another_installations_programs_can_be_used() -> None:
    """The second leg: Debian's PostgreSQL, with its files in places of their own."""
    bindir = debian_postgres()
    with Postgres(bindir=bindir) as server:
        assert server.version.split(".")[0] == bindir.parent.name
        server.kill()
        server.start_again()
        with server.standby() as standby:
            standby.promote()
            assert standby.version == server.version


def test_a_directory_without_programs_is_named() -> None:
    with pytest.raises(ServerNotInstalledError, match="no PostgreSQL server in /nowhere"):
        Postgres(bindir="/nowhere").start()
