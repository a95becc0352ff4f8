"""The kill matrix: every planted bug against every suite that must find it.

``python tests/kill_matrix.py`` prints bug × suite × examples needed × seconds, on servers of its own. Exit status 1 if
a bug survives.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from support import planted, planted_leases, planted_transports
from support.jobs import installed

from fencing.testing import GUARD_BUGS, LEASE_BUGS, PlantedBug, kill
from scheduler.console._options import print_table
from scheduler.console.embedded import Postgres, Valkey

Line = tuple[str, str, str, str, str, int, float]


def lines() -> Iterator[Line]:
    """Layer, bug, where it was seen, suite, what noticed it (empty: nothing did), examples, seconds."""
    with Postgres() as postgres, Valkey() as valkey, tempfile.TemporaryDirectory() as directory:
        dsn, own = postgres.create_database("guards"), postgres.create_database("scheduler")
        with installed(own):
            for bug in (
                *GUARD_BUGS,
                *LEASE_BUGS,
                *planted.sqlite_bugs(Path(directory) / "kit.db"),
                *planted.postgresql_bugs(dsn),
                *planted.valkey_bugs(valkey.url),
                *planted_leases.named_bugs(own),
                *planted_leases.claim_bugs(own),
            ):
                yield from killed(bug)
    for name, (seen_at, session) in planted_transports.BUGS.items():
        began = time.monotonic()
        found = planted_transports.failing(session)
        by = found[0] if found else ""
        yield "transport", name, seen_at, "contract", by, len(found), time.monotonic() - began


def killed(bug: PlantedBug) -> Iterator[Line]:
    for suite in bug.suites:
        end = kill(bug, suite, suites=planted.SUITES)
        yield bug.layer, bug.name, bug.seen_at, suite, end.by, end.examples, end.seconds


def main() -> int:
    found = []
    for line in lines():
        print(f"{line[0]}: {line[1]} ({line[3]})", file=sys.stderr)
        found.append(line)
    print_table(
        ["layer", "bug", "seen at", "suite", "examples", "seconds", "noticed by"],
        [
            [layer, bug, seen_at, suite, examples, f"{seconds:.2f}", by[:70] or "SURVIVED"]
            for layer, bug, seen_at, suite, by, examples, seconds in found
        ],
    )
    survivors = sum(not line[4] for line in found)
    print(f"{len(found)} kills of {len({line[:2] for line in found})} bugs wanted, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
