"""Who waits for whom in PostgreSQL, so that a race is arranged and not hoped for."""

import psycopg

from support.waiting import eventually

__all__ = ["blockers", "eventually", "wait_until_blocked", "wait_until_idle_in_transaction"]


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


def _activity(dsn: str, pid: int) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "select format('%%s, waiting for %%s/%%s: %%s', state, wait_event_type, wait_event, query)"
            " from pg_stat_activity where pid = %s",
            [pid],
        ).fetchone()
    return row[0] if row else "gone"
