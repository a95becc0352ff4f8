"""Named leases: for work that something else starts (Celery, cron, Kubernetes), with tokens of the same issuer."""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
import time

from fencing import Lease, Token, history
from fencing._lease import holding, lease_clock
from fencing.errors import FencingError, LeaseUnavailableError
from scheduler._connect import Database, Link
from scheduler._loop import Loop, log
from scheduler._postgres import acquire_lease, forget_lease, release_lease, renew_leases
from scheduler._sql import Statements
from scheduler._store import Taken
from scheduler._tasks import MAX_LEASE, MIN_LEASE, check_name

TICK = 0.1
"""Seconds between two looks at the held leases: less than a third of the shortest that can be asked for."""


class Leases:
    """The named leases of one process: one thread renews them, another tells of those that ran out.

    Two, since a renewal that gets no answer must not keep the news from the holder.
    """

    def __init__(self, database: Database, statements: Statements, owner: str) -> None:
        self._statements = statements
        self._owner = owner
        self._process = os.getpid()
        self._asking = Link(database, "lease")
        self._renewing = Link(database, "lease renewal")
        self._held: dict[int, tuple[Lease, float]] = {}
        self._lock = threading.Lock()
        self._loops: list[Loop] = []

    def hold(self, name: str, ttl: float, wait: float) -> Hold:
        """Return what acquires the lease when it is entered. Bad input is refused here."""
        check_name("lease", name)
        for what, value, least in (("ttl", ttl, MIN_LEASE), ("wait", wait, 0.0)):
            if not isinstance(value, int | float) or not math.isfinite(value) or not least <= value <= MAX_LEASE:
                raise ValueError(
                    f"lease {name!r}: {what}= is a number of seconds from {least} to {MAX_LEASE:.0f}, not {value!r}"
                )
        return Hold(self, name, float(ttl), float(wait))

    def acquire(self, name: str, ttl: float) -> Lease | Taken:
        """Try once; return the lease, renewed from now on, or who has it."""
        began, sent = time.monotonic_ns(), lease_clock()
        lease: Lease | None = None
        try:
            with self._asking.use(f"acquire the lease {name!r}") as connection:
                taken = acquire_lease(connection, self._statements, self._owner, name, ttl)
                if taken.token is None and taken.holder == self._owner and not self._holds(name):
                    # Taken by us, and the answer got lost: nobody would ever give it back.
                    forget_lease(connection, self._statements, self._owner, name)
                    taken = acquire_lease(connection, self._statements, self._owner, name, ttl)
                if taken.token is None or taken.lineage is None:
                    return taken
                token = Token(taken.token, taken.issuer, taken.lineage)
                lease = Lease(token, name, self._owner, deadline=sent + ttl)
                # Before anybody else here can ask: what is not kept passes for lost.
                self._keep(lease, ttl)
        except BaseException:
            if lease is not None:  # behind a pooler the commit comes last
                self._forget(lease)
            raise
        if history.recording():
            one = (f"lease/{name}",)
            history.emit(history.Event("claim", "done", self._owner, "scheduler", one, str(token), began=began))
        return lease

    def _holds(self, name: str) -> bool:
        with self._lock:
            return any(lease.name == name for lease, _ in self._held.values())

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
            extended = kept.get(lease.token.value)
            if extended:
                lease.extend(sent + ttl)
            elif extended is None and not lease.ended:
                log.warning("the lease %r (%s) is lost", lease.name, lease.token)
                lease.lose()
                self._forget(lease)
        return None

    def release(self, lease: Lease) -> None:
        """Give the lease back by its token. An error leaves it to run out.

        In a child that was forked inside the block, this is the end of it for the child alone: the lease, its threads
        and its connections are the parent's.
        """
        lease.end("released")
        if os.getpid() != self._process:
            return
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
        """End the threads and the connections. Who still holds a lease is told: nobody renews it any more."""
        with self._lock:
            loops, self._loops = self._loops, []
            held = list(self._held.values())
        for loop in loops:
            loop.stop(timeout=5)
        for lease, _ in held:
            lease.lose("its scheduler was closed")
            self._forget(lease)
        self._asking.close()
        self._renewing.close()


class Hold:
    """One block that holds a named lease: ``with`` or ``async with``.

    In the asynchronous form each question to the database is asked on a thread, and the wait between two of them is the
    loop's: neither a lease that is waited for nor a slow database stops the other tasks. The lease is renewed on a
    thread of its own in both.
    """

    def __init__(self, leases: Leases, name: str, ttl: float, wait: float) -> None:
        self._leases = leases
        self._name = name
        self._ttl = ttl
        self._wait = wait
        self._lease: Lease | None = None
        self._holding: holding | None = None

    def __enter__(self) -> Lease:
        self._refuse_twice()
        give_up = time.monotonic() + self._wait
        while not isinstance(answer := self._leases.acquire(self._name, self._ttl), Lease):
            time.sleep(_pause(self._name, answer, give_up))
        return self._begin(answer)

    def __exit__(self, *_: object) -> None:
        self._leases.release(self._end())

    async def __aenter__(self) -> Lease:
        self._refuse_twice()
        give_up = time.monotonic() + self._wait
        while not isinstance(answer := await self._acquire(), Lease):
            await asyncio.sleep(_pause(self._name, answer, give_up))
        return self._begin(answer)

    async def __aexit__(self, *_: object) -> None:
        # A task that is cancelled here must not leave the lease to be renewed for ever.
        await asyncio.shield(asyncio.to_thread(self._leases.release, self._end()))

    async def _acquire(self) -> Lease | Taken:
        asked = _Asked(self._leases, self._name, self._ttl)
        try:
            return await asyncio.to_thread(asked.ask)
        except asyncio.CancelledError:
            asked.abandon()
            raise

    def _refuse_twice(self) -> None:
        if self._lease is not None:
            raise RuntimeError(f"the lease {self._name!r} is held through this already: call lease() for each block")

    def _begin(self, lease: Lease) -> Lease:
        self._lease, self._holding = lease, holding(lease)
        return self._holding.__enter__()

    def _end(self) -> Lease:
        lease, inside = self._lease, self._holding
        assert lease is not None
        assert inside is not None
        self._lease = self._holding = None
        inside.__exit__(None, None, None)
        # At once, whatever the release takes: nothing may be written under it from here on.
        lease.end("released")
        return lease


class _Asked:
    """One question on a thread, whose asker may be cancelled before the answer comes: then nobody keeps the lease."""

    def __init__(self, leases: Leases, name: str, ttl: float) -> None:
        self._leases = leases
        self._name = name
        self._ttl = ttl
        self._lock = threading.Lock()
        self._abandoned = False
        self._answer: Lease | Taken | None = None

    def ask(self) -> Lease | Taken:
        answer = self._leases.acquire(self._name, self._ttl)
        with self._lock:
            self._answer, abandoned = answer, self._abandoned
        if abandoned and isinstance(answer, Lease):
            self._leases.release(answer)
        return answer

    def abandon(self) -> None:
        with self._lock:
            self._abandoned, answer = True, self._answer
        if isinstance(answer, Lease):  # it came in the same moment
            threading.Thread(target=self._leases.release, args=(answer,), name="fencing-lease-release").start()


def _pause(name: str, taken: Taken, give_up: float) -> float:
    """Seconds until the next try. Raises :class:`LeaseUnavailableError` when the wait is over."""
    left = give_up - time.monotonic()
    if left <= 0:
        raise _unavailable(name, taken)
    # Until it runs out if that is soon, else short: the holder may release it at any time.
    return min(left, min(0.25, max(taken.free_in or 0.0, 0.01)) * random.uniform(0.5, 1.0))


def _unavailable(name: str, taken: Taken) -> LeaseUnavailableError:
    return LeaseUnavailableError(
        f"the lease {name!r} is held by {taken.holder or 'somebody else'}"
        + (f" for {taken.free_in:.1f} s more unless renewed" if taken.free_in and taken.free_in > 0 else ""),
        holder=taken.holder,
        downstream="scheduler",
    )
