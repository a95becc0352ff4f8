"""A worker or relay process: ``python -m scheduler.console.torture._process PARENT_PID``, its orders as JSON on the
standard input."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from typing import Any

from fencing import history
from scheduler.console._parent import die_with
from scheduler.console.torture._work import Addresses, open_app, open_relay

TERMINATION = {signal.SIGTERM}


def main(parent: int) -> None:
    """Work as ordered until SIGTERM."""
    die_with(parent)
    orders: dict[str, Any] = json.loads(sys.stdin.readline())
    if orders["role"] == "relay":
        signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION)  # before any thread: it is waited for
    skew = orders["skew"]
    if skew:
        true_time = time.time
        time.time = lambda: true_time() + skew
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    where = Addresses(**orders["addresses"])
    record = history.JsonLines(orders["record"])
    with record.subscribed():
        if orders["role"] == "worker":
            app = open_app(where, fenced=orders["fenced"])
            app.run_worker(concurrency=3)
        else:
            app, relay = open_relay(where)
            stop = threading.Event()
            thread = threading.Thread(target=relay.run, args=(stop,))
            thread.start()
            signal.sigwait(TERMINATION)
            stop.set()
            thread.join()
    app.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
