"""The kit has teeth: each planted bug is found by each of the suites that it names, and sound systems pass them.

The first failing example ends a suite: nothing is shrunk, and the examples are the same each time.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import kill_matrix, mark_races, planted, planted_leases, planted_outbox, planted_services, purge_races
from support.downstreams import PsycopgDownstream
from support.handover import hand_over
from support.jobs import installed, installed_beside
from support.outbox import outbox_engine
from support.schedules import schedules_ground

from fencing.testing import GUARD_BUGS, LEASE_BUGS, PlantedBug, kill
from scheduler.console.embedded import Postgres, Valkey

SUITES = {**planted.SUITES, **planted_services.SUITES, "take-over": hand_over}
MODELS = [(bug, suite) for bug in (*GUARD_BUGS, *LEASE_BUGS) for suite in bug.suites]


@pytest.mark.parametrize(("bug", "suite"), MODELS, ids=[f"{bug.name}-{suite}" for bug, suite in MODELS])
def test_a_bug_of_the_models_is_found(bug: PlantedBug, suite: str) -> None:
    assert kill_matrix.noted(kill(bug, suite)).killed, f"{suite} does not notice {bug.name!r}, seen at {bug.seen_at}"


@pytest.mark.parametrize("name", planted.SQL)
def test_a_bug_in_the_sql_for_sqlite_is_found(name: str, tmp_path: Path) -> None:
    _found(planted.sqlite_bugs(tmp_path / "kit.db"), name)


@pytest.fixture(scope="module")
def dsn(postgres: Postgres, pg_names: Iterator[str]) -> Iterator[str]:
    database = next(pg_names)
    yield postgres.create_database(database)
    postgres.drop_database(database)


@pytest.mark.parametrize("name", [*planted.POSTGRESQL, "contention told as fenced"])
def test_a_bug_in_the_sql_for_postgresql_is_found(name: str, dsn: str) -> None:
    _found(planted.postgresql_bugs(dsn), name)


@pytest.fixture(scope="module")
def scheduler_dsn(dsn: str) -> Iterator[str]:
    with installed(dsn):
        yield dsn


@pytest.mark.parametrize("name", planted_leases.NAMED)
def test_a_bug_in_the_sql_of_named_leases_is_found(name: str, scheduler_dsn: str) -> None:
    _found(planted_leases.named_bugs(scheduler_dsn), name)


@pytest.mark.parametrize("name", planted_leases.CLAIMS)
def test_a_bug_in_the_sql_of_claims_is_found(name: str, scheduler_dsn: str) -> None:
    _found(planted_leases.claim_bugs(scheduler_dsn), name)


@pytest.mark.parametrize("name", planted_outbox.BUGS)
def test_a_bug_in_the_rules_of_the_outbox_is_found(name: str, tmp_path: Path) -> None:
    _found(planted_outbox.outbox_bugs(tmp_path), name)


def test_a_sound_outbox_hands_over_as_promised(tmp_path: Path) -> None:
    engine = outbox_engine("sqlite", "", tmp_path)
    assert hand_over(engine) == ("", 17)
    engine.dispose()


@pytest.mark.parametrize("name", planted.LUA)
def test_a_bug_in_the_script_is_found(name: str, valkey: Valkey) -> None:
    _found(planted.valkey_bugs(valkey.url), name)


def test_the_races_are_kept_where_no_bug_is(dsn: str) -> None:
    with planted.disposing(PsycopgDownstream(dsn)) as sound:
        assert mark_races.race(sound) == ("", 3)
        assert purge_races.race(sound) == ("", 4)


@pytest.mark.parametrize("name", planted_services.ISSUER)
def test_a_bug_in_the_sql_of_the_issuer_is_found(name: str, dsn: str) -> None:
    _found(planted_services.issuer_bugs(dsn), name)


@pytest.mark.parametrize("name", planted_services.MATERIALISER)
def test_a_bug_in_the_sql_of_schedules_is_found(name: str, dsn: str) -> None:
    _found(planted_services.materialiser_bugs(dsn), name)


@pytest.mark.parametrize("name", planted_services.OUTBOX)
def test_a_bug_in_the_outbox_is_found(name: str, tmp_path: Path) -> None:
    _found(planted_services.outbox_bugs(tmp_path), name)


def test_the_stories_pass_where_no_bug_is(dsn: str, tmp_path: Path) -> None:
    with installed_beside(dsn) as (app, tables):
        app.task("work")(print)
        app.enqueue_many("work", range(10))
        planted_services.failover(tables)
    with schedules_ground(dsn) as ground:
        planted_services.occurrences(ground)
    with planted_services.post(tmp_path) as post:
        planted_services.hand_over(post)


def _found(bugs: list[PlantedBug], name: str) -> None:
    [bug] = [bug for bug in bugs if bug.name == name]
    survived = [suite for suite in bug.suites if not kill_matrix.noted(kill(bug, suite, suites=SUITES)).killed]
    assert not survived, f"{bug.name!r} in {bug.layer}, seen at {bug.seen_at}, is not noticed by {survived}"
