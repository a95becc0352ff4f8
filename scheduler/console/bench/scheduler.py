"""The scheduler against loops written by hand, and against itself where its cost should stay flat."""

from __future__ import annotations

from scheduler.console.bench import _drain, _enqueue, _flat, _latency, _many, _materialise
from scheduler.console.bench._frame import Bench, in_turn

BENCHES = [
    Bench(
        "drain",
        "no-op jobs drained by one worker process, tokens and attempt rows and all, against a psycopg loop "
        "with SKIP LOCKED, batch 100, all that a handler is given and a fenced batch completion, same durability",
        "jobs/s",
        "higher",
        1.0,
        in_turn(_drain.ours, _drain.base),
    ),
    Bench(
        "latency_p50",
        "from enqueue to the handler's first line, two processes, an idle worker: half of the jobs wait at most so "
        "long; against an INSERT with pg_notify and a loop that listens and claims",
        "ms",
        "lower",
        1.5,
        in_turn(*_latency.quantile(0.5)),
    ),
    Bench(
        "latency_p99",
        "the same for 99 of 100 jobs",
        "ms",
        "lower",
        2.0,
        in_turn(*_latency.quantile(0.99)),
    ),
    Bench(
        "enqueue",
        "bulk enqueue against COPY by hand into a table with one index less, its JSON written beforehand",
        "rows/s",
        "higher",
        0.8,
        in_turn(_enqueue.ours, _enqueue.base),
    ),
    Bench(
        "old_snapshot",
        f"the last tenth of {_flat.CHURN:,} jobs against the first, while another connection holds an old snapshot",
        "jobs/s",
        "higher",
        0.9,
        _flat.old_snapshot,
    ),
    Bench(
        "finished_rows",
        "a drain beside a million finished jobs against one without",
        "jobs/s",
        "higher",
        0.95,
        _flat.finished_rows,
    ),
    Bench(
        "future_rows",
        "a drain beside a million jobs that are due later, of three priorities, against one without",
        "jobs/s",
        "higher",
        0.9,
        _flat.future_rows,
    ),
    Bench(
        "many_workers",
        f"{_many.MANY} worker processes, connected and idle and then all claiming at once, against {_many.FEW}",
        "jobs/s",
        "higher",
        1.0,
        in_turn(_many.of(_many.MANY), _many.of(_many.FEW)),
    ),
    Bench(
        "materialise",
        f"{_materialise.OCCURRENCES} occurrences of each of {_materialise.SCHEDULES:,} schedules in a zone with clock "
        "changes written into the ledger, with their jobs, against croniter alone on local times",
        "µs/schedule",
        "lower",
        1.3,
        in_turn(_materialise.ours, _materialise.base),
    ),
]
