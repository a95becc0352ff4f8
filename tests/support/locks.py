"""Who waits for whom in PostgreSQL, and who is gone, so that a race is arranged and not hoped for."""

import psycopg

from support.waiting import eventually

__all__ = ["blockers", "end_backend", "eventually", "wait_until_blocked", "wait_until_idle_in_transaction"]


def blockers(dsn: str, pid: int) -> list[int]:
    """The backends that the backend ``pid`` waits for right now; empty when it waits for no lock."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select pg_blocking_pids(%s)", [pid]).fetchone()
    return list(row[0]) if row else []


def wait_until_blocked(dsn: str, pid: int, *, by: int | None = None, timeout: float = 60) -> list[int]:
    """Returns the blockers once the backend ``pid`` waits for a lock (with ``by``, one of that backend's)."""

    def blocked() -> list[int]:
        found = blockers(dsn, pid)
        return found if by is None or by in found else []

    whom = "a lock" if by is None else f"a lock of backend {by}"
    try:
        return eventually(blocked, f"backend {pid} waits for {whom}", timeout)
    except AssertionError as error:
        raise AssertionError(f"{error}; it is: {_activity(dsn, pid)}") from None


def wait_until_idle_in_transaction(dsn: str, pid: int, *, timeout: float = 60) -> None:
    """Returns once the backend ``pid`` sits in an open transaction and executes nothing."""

    def idle() -> bool:
        return _activity(dsn, pid).startswith("idle in transaction")

    eventually(idle, f"backend {pid} is idle in a transaction", timeout)


def end_backend(dsn: str, pid: int) -> None:
    """Ends the backend ``pid`` and returns once it is gone: before 14 the server cannot be asked to wait for that."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(%s)", [pid])
    eventually(lambda: _activity(dsn, pid) == "gone", f"backend {pid} is gone")


def _activity(dsn: str, pid: int) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "select format('%%s, waiting for %%s/%%s: %%s', state, wait_event_type, wait_event, query)"
            " from pg_stat_activity where pid = %s",
            [pid],
        ).fetchone()
    return row[0] if row else "gone"
