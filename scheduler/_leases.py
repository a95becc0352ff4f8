"""Named leases: for work that something else starts (Celery, cron, Kubernetes), with tokens of the same issuer."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fencing import Lease, Token, history
from fencing._lease import holding, lease_clock
from fencing.errors import FencingError, LeaseUnavailableError
from scheduler._connect import Database, Link
from scheduler._loop import Loop, log
from scheduler._postgres import acquire_lease, release_lease, renew_leases
from scheduler._sql import Statements
from scheduler._store import Taken
from scheduler._tasks import MAX_LEASE, MIN_LEASE, check_name

TICK = 0.25
"""Seconds between two looks at the held leases:

a third of the shortest lease that can be asked for lies well above it.
"""


class Leases:
    """The named leases of one process: one thread renews them, another tells of those that ran out.

    Two, since a renewal that gets no answer must not keep the news from the holder.
    """

    def __init__(self, database: Database, statements: Statements, owner: str) -> None:
        self._statements = statements
        self._owner = owner
        self._asking = Link(database, "lease")
        self._renewing = Link(database, "lease renewal")
        self._held: dict[int, tuple[Lease, float]] = {}
        self._lock = threading.Lock()
        self._loops: list[Loop] = []

    @contextmanager
    def hold(self, name: str, ttl: float, wait: float) -> Iterator[Lease]:
        """Acquire, renew in the background, release by token."""
        check_name("lease", name)
        for what, value, least in (("ttl", ttl, MIN_LEASE), ("wait", wait, 0.0)):
            if not isinstance(value, int | float) or not math.isfinite(value) or not least <= value <= MAX_LEASE:
                raise ValueError(
                    f"lease {name!r}: {what}= is a number of seconds from {least} to {MAX_LEASE:.0f}, not {value!r}"
                )
        lease = self._acquire(name, float(ttl), wait)
        self._keep(lease, float(ttl))
        try:
            with holding(lease):
                yield lease
        finally:
            lease.end("released")
            self._release(lease)

    def _acquire(self, name: str, ttl: float, wait: float) -> Lease:
        give_up = time.monotonic() + wait
        while True:
            began, sent = time.monotonic_ns(), lease_clock()
            with self._asking.use(f"acquire the lease {name!r}") as connection:
                taken = acquire_lease(connection, self._statements, self._owner, name, ttl)
            if taken.token is not None and taken.lineage is not None:
                token = Token(taken.token, taken.issuer, taken.lineage)
                if history.recording():
                    one = (f"lease/{name}",)
                    history.emit(history.Event("claim", "done", self._owner, "scheduler", one, str(token), began=began))
                return Lease(token, name, self._owner, deadline=sent + ttl)
            left = give_up - time.monotonic()
            if left <= 0:
                raise _unavailable(name, taken)
            # Until it runs out if that is soon, else short: the holder may release it at any time.
            pause = min(0.25, max(taken.free_in or 0.0, 0.01)) * random.uniform(0.5, 1.0)
            time.sleep(min(pause, left))

    def _keep(self, lease: Lease, ttl: float) -> None:
        with self._lock:
            self._held[lease.token.value] = (lease, ttl)
            if not self._loops:
                self._loops = [
                    Loop("lease keeper", self._renew, TICK, max_backoff=TICK),
                    Loop("lease watch", self._watch, TICK),
                ]
                for loop in self._loops:
                    loop.start()

    def _live(self) -> list[tuple[Lease, float]]:
        with self._lock:
            return [(lease, ttl) for lease, ttl in self._held.values() if not lease.ended]

    def _watch(self) -> float | None:
        for lease, _ in self._live():
            if lease.expire_if_due():
                log.warning("the lease %r (%s) is lost: no renewal was confirmed in time", lease.name, lease.token)
                self._forget(lease)
        return None

    def _renew(self) -> float | None:
        due = [(lease, ttl) for lease, ttl in self._live() if lease.remaining() < ttl * 2 / 3 and not lease.is_lost]
        if not due:
            return None
        sent = lease_clock()
        with self._renewing.use("renew leases") as connection:
            kept = renew_leases(
                connection,
                self._statements,
                self._owner,
                [(lease.name, lease.token.value, ttl) for lease, ttl in due],
            )
        for lease, ttl in due:
            if lease.token.value in kept:
                lease.extend(sent + ttl)
            elif not lease.ended:
                log.warning("the lease %r (%s) is lost", lease.name, lease.token)
                lease.lose()
                self._forget(lease)
        return None

    def _release(self, lease: Lease) -> None:
        self._forget(lease)
        try:
            began = time.monotonic_ns()
            with self._asking.use(f"release the lease {lease.name!r}") as connection:
                held = release_lease(connection, self._statements, self._owner, lease.name, lease.token.value)
        except FencingError as exc:
            log.warning("the lease %r could not be released and will run out: %s", lease.name, exc)
            return
        if history.recording():
            one = (f"lease/{lease.name}",)
            history.emit(
                history.Event(
                    "settle",
                    "done" if held else "lost",
                    self._owner,
                    "scheduler",
                    one,
                    str(lease.token),
                    detail="released",
                    began=began,
                )
            )

    def _forget(self, lease: Lease) -> None:
        with self._lock:
            self._held.pop(lease.token.value, None)

    def close(self) -> None:
        """End the threads and the connections."""
        for loop in self._loops:
            loop.stop(timeout=5)
        self._asking.close()
        self._renewing.close()


def _unavailable(name: str, taken: Taken) -> LeaseUnavailableError:
    return LeaseUnavailableError(
        f"the lease {name!r} is held by {taken.holder or 'somebody else'}"
        + (f" for {taken.free_in:.1f} s more unless renewed" if taken.free_in and taken.free_in > 0 else ""),
        holder=taken.holder,
        downstream="scheduler",
    )
