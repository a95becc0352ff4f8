"""Renewal: a thread for each lease that is held."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from adapters.etcd._gateway import EtcdError, Gateway, LeaseNotFoundError
from fencing import Lease
from fencing._lease import lease_clock

log = logging.getLogger("fencing.etcd")

_PER_TTL: Final = 3
"""Renewals within one time to live."""


class Keeper:
    """Renews one lease until it is stopped or the lease is lost, on a thread of its own.

    A thread, also under asyncio: a handler that blocks its event loop would hold the renewals up with it. A renewal
    counts from before it was sent, and only if the key is still the one that was created; an answer that does not
    come extends nothing.
    """

    def __init__(
        self, gateway: Gateway, lease: Lease, etcd_lease: str, is_mine: dict[str, Any], seconds: float
    ) -> None:
        self._gateway = gateway
        self._lease = lease
        self._etcd_lease = etcd_lease
        self._is_mine = is_mine
        self._pause = seconds / _PER_TTL
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fencing-etcd-{lease.name}", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more, and return when no renewal is under way."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause = self._pause
        while not self._stopped.wait(max(0.0, min(pause, self._lease.remaining()))):
            if self._lease.expire_if_due():
                log.warning(
                    "the lease %r (%s) is lost: it was not renewed in time", self._lease.name, self._lease.token
                )
                return
            try:
                self.renew()
                pause = self._pause
            except LeaseNotFoundError as exc:
                self._lease.lose()
                log.warning("the lease %r (%s) is lost: %s", self._lease.name, self._lease.token, exc)
                return
            except EtcdError as exc:
                log.warning("the lease %r could not be renewed: %s", self._lease.name, exc)
                pause = self._pause / _PER_TTL
            except Exception:  # an answer that nobody foresaw must not end the thread that tells of a lost lease
                log.exception("the lease %r could not be renewed", self._lease.name)
                pause = self._pause / _PER_TTL

    def renew(self) -> None:
        """One renewal. Raises :class:`LeaseNotFoundError` where the lease is another's, or nobody's."""
        asked = lease_clock()
        limit = max(0.1, min(self._pause, self._lease.remaining()))
        seconds = self._gateway.keep_alive(self._etcd_lease, limit)
        if not self._gateway.txn({"compare": [self._is_mine]}, limit).get("succeeded"):
            raise LeaseNotFoundError("its key was deleted, or is another's now")
        self._lease.extend(asked + seconds)
