"""The scheduler against loops written by hand, and against itself where its cost should stay flat."""

from __future__ import annotations

from scheduler.console.bench import _drain, _materialise
from scheduler.console.bench._frame import Bench, in_turn

BENCHES = [
    Bench(
        "drain",
        "no-op jobs drained by one worker process, tokens and attempt rows and all, against a psycopg loop "
        "with SKIP LOCKED, batch 100 and a fenced batch completion, same durability",
        "jobs/s",
        "higher",
        1.0,
        in_turn(_drain.ours, _drain.base),
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
