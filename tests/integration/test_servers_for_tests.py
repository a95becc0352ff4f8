"""The fixtures: what every other test builds on."""

from collections.abc import Callable

import psycopg
import pytest
from hypothesis import settings
from support.locks import wait_until_blocked, wait_until_idle_in_transaction
from support.processes import PythonProcess, thread_states
from support.servers import IN_CI
from support.waiting import eventually

from scheduler.console.embedded import Postgres, Valkey


@pytest.mark.parametrize("time", ["first", "second"])
def test_every_test_has_a_fresh_database(pg_dsn: str, time: str) -> None:
    with psycopg.connect(pg_dsn) as connection:
        connection.execute("create table here (n int)")


@pytest.mark.parametrize("time", ["first", "second"])
def test_every_test_has_an_empty_valkey(valkey: Valkey, valkey_url: str, time: str) -> None:
    assert valkey.command("DBSIZE") == "0"
    valkey.command("SET", "here", "1")


def test_a_connection_left_open_does_not_keep_the_database(postgres: Postgres) -> None:
    connection = psycopg.connect(postgres.create_database("kept_open"))
    try:
        connection.execute("select 1")
        postgres.drop_database("kept_open")
    finally:
        connection.close()
    with postgres.connect() as admin:
        assert admin.execute("select 1 from pg_database where datname = 'kept_open'").fetchone() is None


def test_servers_of_ones_own_come_up_beside_the_common_ones(
    pg_server: Callable[..., Postgres], valkey_server: Callable[..., Valkey], postgres: Postgres, valkey: Valkey
) -> None:
    own = pg_server(settings={"work_mem": "5MB"})
    with own.connect() as connection:
        assert connection.execute("show work_mem").fetchone() == ("5MB",)
    assert own.port != postgres.port
    assert valkey_server().port != valkey.port


def test_property_tests_are_repeatable_in_ci() -> None:
    assert not IN_CI or settings().derandomize
    assert settings.get_profile("ci").derandomize
    assert settings.get_profile("ci").deadline is None


def test_waiting_for_a_lock_tells_who_holds_it(pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn) as holder, psycopg.connect(pg_dsn) as waiter:
        holder.execute("select pg_advisory_xact_lock(1)")
        wait_until_idle_in_transaction(pg_dsn, holder.info.backend_pid)
        with pytest.raises(AssertionError, match=r"waits for a lock.*it is: idle"):
            wait_until_blocked(pg_dsn, waiter.info.backend_pid, timeout=0.05)
        waiter.pgconn.send_query(b"select pg_advisory_xact_lock(1)")
        blockers = wait_until_blocked(pg_dsn, waiter.info.backend_pid, by=holder.info.backend_pid)
        assert blockers == [holder.info.backend_pid]
        holder.rollback()
        eventually(lambda: waiter.pgconn.get_result() is None, "the waiter has got the lock")


def test_a_process_is_stopped_when_pause_returns_and_goes_on_afterwards() -> None:
    code = """
        import sys, threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        for line in sys.stdin:
            print("heard", line.strip())
    """
    with PythonProcess(code) as process:
        process.tell("one")
        process.expect("heard one")
        process.pause()
        assert set(thread_states(process.pid)) == {"T"}
        process.tell("two")
        with pytest.raises(AssertionError, match=r"no line within 0.2 s"):
            process.line(timeout=0.2)
        process.resume()
        process.expect("heard two")
        assert process.kill() == -9


def test_a_process_that_fails_shows_why() -> None:
    with PythonProcess("raise ValueError('the reason')") as process:
        with pytest.raises(AssertionError, match=r"(?s)ended with 1.*the reason"):
            process.line()


def test_a_condition_that_never_comes_tells_what_was_last_seen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.05 s: the sky falls \(last seen: 0\)"):
        eventually(lambda: 0, "the sky falls", timeout=0.05)
