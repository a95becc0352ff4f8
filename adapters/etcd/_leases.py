"""Named leases in etcd, with the revision of the key's creation as their token."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from adapters.etcd._gateway import EtcdError, Gateway, LeaseNotFoundError, decoded, encoded
from adapters.etcd._keeper import Keeper
from fencing import Lease, Token
from fencing._law import check_resources
from fencing._lease import holding, lease_clock, process_holder
from fencing.errors import LeaseUnavailableError

log = logging.getLogger("fencing.etcd")

_TRIES: Final = 3
"""How often one transaction is sent whose answer was lost."""
_LONGEST_WATCH: Final = 5.0
"""Seconds after which a waiter looks by itself: a watch may have been lost on the way."""
_APART: Final = 0.05
"""Seconds within which the waiters for one lease ask for it, so that they do not all come at once."""


class EtcdLeases:
    """Leases and tokens from etcd; a :class:`~fencing.LeaseSource`.

    A token's value is the revision at which etcd created the lease's key: the cluster's one counter, which only grows.
    Its issuer is named after the cluster's id and a random part that the first user writes to ``PREFIX/issuer``: two
    clusters that were started alike have the same id, and their revisions have no order. Its lineage is the id of the
    etcd lease. So a cluster restored from a backup, which counts revisions a second time, is refused where it repeats
    one (:class:`~fencing.errors.LineageConflictError`), and as stale below.

    ``endpoints``: URLs of client ports, tried in turn. ``prefix``: before every key. ``user``, ``password``: for
    etcd's own authentication. ``timeout``: seconds for one call. ``options`` go to ``httpx.Client`` (``verify=``,
    ``cert=``). Usable from several threads; ``close()`` or a ``with`` block ends its connections.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = "http://127.0.0.1:2379",
        *,
        prefix: str = "fencing/",
        user: str | None = None,
        password: str | None = None,
        timeout: float = 5.0,
        **options: Any,
    ) -> None:
        urls = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        if not urls or not all(isinstance(url, str) and url.startswith(("http://", "https://")) for url in urls):
            raise ValueError(f"endpoints are URLs of etcd's client ports, http:// or https://, not {endpoints!r}")
        self._gateway = Gateway([url.rstrip("/") for url in urls], user, password, timeout, options)
        self._prefix = prefix
        self._keepers: set[Keeper] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections. Leases still held are no longer renewed, and run out."""
        for keeper in list(self._keepers):
            keeper.stop()
        self._gateway.close()

    def lease(self, name: str, *, ttl: float, wait: float = 0) -> EtcdHold:
        """Hold the named lease for a ``with`` or ``async with`` block, renewed meanwhile, released by its token.

        ``ttl``: seconds after which it runs out once this process no longer renews it, in etcd's whole seconds, rounded
        up. ``wait``: seconds to wait for another holder. ``fenced_write()`` inside takes its token by itself.

        Entering raises :class:`~fencing.errors.LeaseUnavailableError` when the wait is over, and :class:`EtcdError`
        when etcd cannot be reached.
        """
        check_resources((name,))
        if not ttl > 0 or not wait >= 0 or math.isinf(ttl):
            raise ValueError(f"ttl is above 0 and wait not below 0, in seconds, not ttl={ttl!r}, wait={wait!r}")
        return EtcdHold(self, name, ttl, wait)

    def acquire(self, name: str, ttl: float, wait: float, given_up: threading.Event) -> Held:
        """For :class:`EtcdHold`: take the lease, waiting for it, unless the caller has given up."""
        give_up = time.monotonic() + wait
        key = encoded(f"{self._prefix}lease/{name}")
        while True:
            try:
                held = self._try(name, key, ttl)
            except LeaseNotFoundError:  # this process was stopped between the two steps for longer than the ttl
                if given_up.is_set():
                    raise
                continue
            if isinstance(held, Held):
                return held
            left = give_up - time.monotonic()
            if left <= 0 or given_up.is_set():
                raise LeaseUnavailableError(
                    f"the lease {name!r} is held by {held.holder} since revision {held.revision}"
                    + (f", and {wait:g} s are over" if wait else ""),
                    holder=held.holder,
                )
            self._gateway.wait_for_change(key, held.seen + 1, max(0.01, min(left, _LONGEST_WATCH)))
            given_up.wait(random.uniform(0, _APART))

    def keep(self, held: Held) -> None:
        """For :class:`EtcdHold`: renew it from now on."""
        held.keeper.start()
        self._keepers.add(held.keeper)

    def release(self, held: Held) -> None:
        """For :class:`EtcdHold`: give it back, if it is still this token's. Never raises: it ends by itself."""
        held.keeper.stop()
        self._keepers.discard(held.keeper)
        held.lease.end("released")
        try:
            # By its token. Revoking the etcd lease would do; it is asked for second, to leave nothing behind.
            self._gateway.txn({"compare": [_created(held.key, held.lease.token.value)], "success": [_delete(held.key)]})
            self._gateway.revoke(held.etcd_lease)
        except EtcdError as exc:
            log.warning("the lease %r could not be given back and runs out by itself: %s", held.lease.name, exc)

    def _try(self, name: str, key: str, ttl: float) -> Held | _Other:
        """One attempt: this process's, or who holds it."""
        holder, nonce = process_holder(), os.urandom(12).hex()
        asked = lease_clock()
        etcd_lease, seconds = self._gateway.grant(math.ceil(ttl))
        issuer_key = encoded(f"{self._prefix}issuer")
        request = {
            "compare": [_created(key, 0)],
            "success": [_put(key, f"{nonce} {holder}", etcd_lease), _get(issuer_key)],
            "failure": [_get(key), _get(issuer_key)],
        }
        answer = self._send_until_heard(request, etcd_lease)
        revision = int(answer["header"]["revision"])
        if answer.get("succeeded"):
            created = revision
        else:
            found = _value(answer, 0)
            if found is None:  # cannot be: it is there, or it could have been created
                raise EtcdError(f"etcd refused to create the key of {name!r}, and does not have it")
            its_nonce, _, its_holder = found[0].partition(" ")
            if its_nonce != nonce:
                self._gateway.revoke(etcd_lease)
                return _Other(its_holder or "somebody unknown", found[1], revision)
            created = found[1]  # an earlier sending was heard: the answer was lost
        suffix = _value(answer, 1)
        suffix_text = suffix[0] if suffix else self._make_suffix(issuer_key)
        issuer = f"etcd-{int(answer['header']['cluster_id']):016x}-{suffix_text}"
        lease = Lease(Token(created, issuer, f"{int(etcd_lease):x}"), name, holder, deadline=asked + seconds)
        keeper = Keeper(self._gateway, lease, etcd_lease, _created(key, created), seconds)
        return Held(lease, key, etcd_lease, keeper)

    def _send_until_heard(self, request: dict[str, Any], etcd_lease: str) -> dict[str, Any]:
        for last in (*(False,) * (_TRIES - 1), True):
            try:
                return self._gateway.txn(request)
            except LeaseNotFoundError:
                raise
            except EtcdError:
                if last:
                    # It may have been created all the same. It is never renewed, so it runs out; at once if etcd hears.
                    try:
                        self._gateway.revoke(etcd_lease)
                    except EtcdError as exc:
                        log.debug("the etcd lease %s is left to run out: %s", etcd_lease, exc)
                    raise
        raise AssertionError("not reached")

    def _make_suffix(self, issuer_key: str) -> str:
        answer = self._gateway.txn(
            {
                "compare": [_created(issuer_key, 0)],
                "success": [_put(issuer_key, os.urandom(4).hex()), _get(issuer_key)],
                "failure": [_get(issuer_key), _get(issuer_key)],
            }
        )
        made = _value(answer, 1)
        if made is None:
            raise EtcdError(f"etcd lost the key {decoded(issuer_key)!r} as it was written")
        return made[0]


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A lease that was acquired, and what renews and releases it."""

    lease: Lease
    key: str
    etcd_lease: str
    keeper: Keeper


@dataclass(frozen=True, slots=True)
class _Other:
    """Somebody else has it: who, since which revision, and the revision at which that was seen."""

    holder: str
    revision: int
    seen: int


class EtcdHold:
    """A lease for one ``with`` or ``async with`` block. ``async with`` waits on a thread, out of the loop's way."""

    def __init__(self, source: EtcdLeases, name: str, ttl: float, wait: float) -> None:
        self._source = source
        self._name = name
        self._ttl = ttl
        self._wait = wait
        self._held: Held | None = None
        self._holding: holding | None = None

    def __enter__(self) -> Lease:
        return self._begin(self._source.acquire(self._name, self._ttl, self._wait, threading.Event()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.release(self._end())

    async def __aenter__(self) -> Lease:
        given_up = threading.Event()
        acquiring = asyncio.ensure_future(
            asyncio.to_thread(self._source.acquire, self._name, self._ttl, self._wait, given_up)
        )
        try:
            held = await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            given_up.set()
            acquiring.add_done_callback(self._give_back)
            raise
        return self._begin(held)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._source.release, self._end())

    def _begin(self, held: Held) -> Lease:
        if self._held is not None:
            self._source.release(held)
            raise RuntimeError(f"this hold of {self._name!r} is in use already: call lease() for each block")
        self._held = held
        self._source.keep(held)
        self._holding = holding(held.lease)
        return self._holding.__enter__()

    def _end(self) -> Held:
        held, self._held = self._held, None
        assert held is not None
        assert self._holding is not None
        self._holding.__exit__()
        return held

    def _give_back(self, acquiring: asyncio.Future[Held]) -> None:
        """The caller was cancelled while a thread was acquiring: nobody holds what it got."""
        if not acquiring.cancelled() and acquiring.exception() is None:
            threading.Thread(
                target=self._source.release, args=(acquiring.result(),), name="fencing-etcd-release"
            ).start()


def _created(key: str, revision: int) -> dict[str, Any]:
    return {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def _put(key: str, value: str, etcd_lease: str = "0") -> dict[str, Any]:
    return {"request_put": {"key": key, "value": encoded(value), "lease": etcd_lease}}


def _get(key: str) -> dict[str, Any]:
    return {"request_range": {"key": key}}


def _delete(key: str) -> dict[str, Any]:
    return {"request_delete_range": {"key": key}}


def _value(answer: dict[str, Any], index: int) -> tuple[str, int] | None:
    """The value and the revision of creation that the operation at ``index`` has read."""
    found = answer["responses"][index].get("response_range", {}).get("kvs")
    return (decoded(found[0].get("value", "")), int(found[0]["create_revision"])) if found else None
