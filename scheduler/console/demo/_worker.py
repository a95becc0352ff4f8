"""A worker process of the demo: ``python -m scheduler.console.demo._worker PARENT_PID``.

The standard input brings a line with its orders, as JSON, and then, once the work in the middle of the handler may
end, another line.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from fencing import history
from scheduler import Job
from scheduler.console._parent import die_with
from scheduler.console.demo import careless, shop
from scheduler.console.demo._addresses import Addresses


def main(parent: int) -> None:
    """Work as ordered until SIGTERM."""
    die_with(parent)
    line = sys.stdin.readline()
    if not line:
        return
    orders: dict[str, Any] = json.loads(line)
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    open_shop = shop.open_shop if orders["fenced"] else careless.open_shop
    app = open_shop(Addresses(**orders["addresses"]), orders["cron"], _work)
    record = history.JsonLines(orders["record"])
    with record.subscribed():
        app.run_worker(concurrency=1)
    app.close()


def _work(job: Job) -> None:
    """What takes a while: it ends when the demo says so."""
    text = "is in the middle of its work"
    history.emit(history.Event("note", "done", job.lease.holder, token=str(job.token), detail=text))
    sys.stdin.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]))
