"""Planted bugs in the issuer, the materialiser and the outbox, and for each of these layers a story that notices."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import Engine, text

from adapters.email import MemoryTransport, Outbox, Outgoing, Relay, _put, _rescue, _settle
from adapters.email._transport import Delivery, Gate, GateClosed, Session
from fencing.errors import FencingError, KeyConflictError
from fencing.testing import PlantedBug
from fencing.testing._kill import Runner
from scheduler._issuer import ensure_current
from support.jobs import Hand, Tables, installed_beside
from support.lease_systems import Edits, editing
from support.outbox import CounterLeases, mail, outbox_engine, row
from support.planted import edited
from support.schedules import Ground, hour, schedules_ground

Story = Callable[[Any], None]


def _change(old: str, new: str = "") -> Callable[[str], str]:
    return lambda text: edited(text, old, new)


# -- the issuer

ISSUER: dict[str, tuple[str, Edits]] = {
    "another server is not noticed": (
        "counters on a promoted standby (measured)",
        {
            "claim": _change("identity = {schema}.identity() as ok", "true as ok"),
            "claim_lane": _change(" and identity = (select {schema}.identity())", ""),
        },
    ),
    "no floor by the clock": (
        "sequences after kill -9 with an asynchronous commit (measured)",
        {"issuer_change": _change("greatest(%(floor)s::bigint, (select", "greatest(1::bigint, (select")},
    ),
    "the clock alone": (
        "goatbeat: tokens from a clock",
        {
            "issuer_change": _change(
                "greatest(%(floor)s::bigint, (select last_value + %(above)s::bigint from {schema}.token))",
                "%(floor)s::bigint + 0 * %(above)s::bigint",
            )
        },
    ),
    "the lineage stays": (
        "no report known",
        {"issuer_change": _change("lineage = gen_random_uuid()::text", "lineage = lineage")},
    ),
    "the identity is not written down": (
        "no report known",
        {"issuer_change": _change("identity = {schema}.identity(), ", "")},
    ),
}


def issuer_bugs(dsn: str) -> list[PlantedBug]:
    """Faults in ``claim.sql``, ``claim_lane.sql`` and ``issuer_change.sql``."""

    def bug(name: str, seen_at: str, edits: Edits) -> PlantedBug:
        @contextlib.contextmanager
        def plant() -> Iterator[Tables]:
            with installed_beside(dsn) as (app, tables):
                app.task("work")(print)
                app.enqueue_many("work", range(10))
                with editing(edits):
                    yield tables

        return PlantedBug(name, seen_at, "issuer SQL", ("failover",), plant)

    return [bug(name, *facts) for name, facts in ISSUER.items()]


def failover(tables: Tables) -> None:
    """Tokens rise over a server that forgot some, and over a clock that stands behind."""
    hand = Hand(tables.dsn, {"work": 60.0}, schema=tables.schema)
    with contextlib.closing(hand):
        first = _claim(hand, tables)
        tables.one(f"select setval('{tables.schema}.token', {first.token - 1000})")  # a standby that lagged
        _move(tables)
        second, third = _claim(hand, tables), _claim(hand, tables)
        assert second.token > first.token, "a token fell with the server"
        assert third.token > second.token, "a token fell"
        assert second.lineage != first.lineage, "another server goes on under the same lineage"
        assert third.lineage == second.lineage, "every claim begins a lineage"
        # Where the clock's floor would be, had the clock been set back by some minutes.
        tables.one(f"select setval('{tables.schema}.token', {third.token + 2**30})")
        _move(tables)
        assert _claim(hand, tables).token > third.token + 2**30, "a token fell with the clock"


def _claim(hand: Hand, tables: Tables) -> Any:
    jobs = hand.claim(1)
    if not jobs:  # what a worker does when the claim says that the server is another
        ensure_current(hand.on("issuer"), hand.statements)
        jobs = hand.claim(1)
    (job,) = jobs
    return job


def _move(tables: Tables) -> None:
    tables.rows("update {s}.issuer set identity = 'another server'")


# -- the materialiser

MATERIALISER: dict[str, tuple[str, Edits]] = {
    "no ledger": (
        "procrastinate (measured)",
        {"materialise": _change("do nothing", "do update set revision = excluded.revision")},
    ),
    "a cursor that falls": (
        "paseo #2819",
        {"schedules_advance": _change("greatest(s.materialised_until, n.until)", "n.until")},
    ),
    "an edit fires the past": (
        "kubernetes #63371",
        {"schedule_change": _change("greatest(s.materialised_until, now)", "s.materialised_until")},
    ),
    "an occurrence without its job": (
        "procrastinate #1495",
        {
            "materialise": _change(
                "where f.state = 'enqueued'", "where f.state = 'enqueued' and f.due_at < now() - interval '99 years'"
            )
        },
    ),
}


def materialiser_bugs(dsn: str) -> list[PlantedBug]:
    """Faults in the statements of schedules."""

    def bug(name: str, seen_at: str, edits: Edits) -> PlantedBug:
        @contextlib.contextmanager
        def plant() -> Iterator[Ground]:
            with editing(edits), schedules_ground(dsn) as ground:
                yield ground

        return PlantedBug(name, seen_at, "schedule SQL", ("occurrences",), plant)

    return [bug(name, *facts) for name, facts in MATERIALISER.items()]


def occurrences(ground: Ground) -> None:
    """Each occurrence is made once, with its job, whatever is run again; an edit begins now."""
    tables = ground.tables
    app = ground.process()
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    ground.step(hour(9, 1))
    assert ground.dues() == [hour(9)], "the occurrence is not there once, with a job"
    (job,) = tables.jobs()
    tables.tamper(f"delete from {tables.schema}.job where id = {job['id']}")  # run, and pruned
    cursor = tables.schedule("hourly")["materialised_until"]
    names = {"names": ["hourly"], "zone_versions": [""], "zone_hashes": [""]}
    with ground.link.use("advance") as connection:  # a materialiser that comes late
        connection.execute(
            ground.statements["schedules_advance"], names | {"untils": [hour(8, 30)], "nexts": [hour(9)]}
        )
    assert tables.schedule("hourly")["materialised_until"] == cursor, "the cursor fell"
    tables.rows(
        "update {s}.schedule set materialised_until = %(then)s, next_at = %(next)s", then=hour(8, 30), next=hour(9)
    )
    ground.step(hour(9, 2))
    assert not tables.jobs(), "an occurrence was made twice"
    ground.at(hour(9, 30))
    later = ground.process()
    later.schedule("hourly", "15 * * * *", tz="UTC", task="send")
    later.sync_schedules()
    ground.step(hour(9, 31))
    assert hour(9, 15) not in ground.dues(), "an edit fired the past"


# -- the outbox

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


def _same(*_: object) -> tuple[str, ...]:
    return ()


OUTBOX: dict[str, tuple[str, Patch]] = {
    "a stale relay hands over": (
        "django-post_office: two hosts, 80 copies (measured)",
        lambda: mock.patch.object(_settle, "MINE", "(:issuer is not null or :lineage is not null or :token > 0)"),
    ),
    "what is in doubt is sent again under hold": (
        "wolverine #585, evc-team-relay #115",
        lambda: mock.patch.object(_rescue, "_RESENT", "attempts + 1 < :max_attempts"),
    ),
    "one key, two contents": ("novu #12247", lambda: mock.patch.object(_put, "differing", _same)),
}


@dataclasses.dataclass
class Post:
    """An outbox in a database of its own, and what arrived."""

    engine: Engine
    arrived: MemoryTransport
    stale_hand_overs: int = 0

    def relay(self, transport: Any) -> Relay:
        return Relay(self.engine, transport, leases=CounterLeases(self.engine), lease=60.0)

    def expire(self) -> None:
        """Every relay's hold is over."""
        with self.engine.begin() as connection:
            connection.execute(
                text("update fencing_outbox set lease_until = '2000-01-01 00:00:00' where lease_until is not null")
            )


@contextlib.contextmanager
def post(directory: Path) -> Iterator[Post]:
    """An outbox on SQLite."""
    engine = outbox_engine("sqlite", "", directory)
    try:
        yield Post(engine, MemoryTransport())
    finally:
        engine.dispose()


def outbox_bugs(directory: Path) -> list[PlantedBug]:
    """Faults in what the outbox asks the database."""

    def bug(name: str, seen_at: str, patch: Patch) -> PlantedBug:
        @contextlib.contextmanager
        def plant() -> Iterator[Post]:
            with patch(), post(directory) as made:
                yield made

        return PlantedBug(name, seen_at, "outbox SQL", ("hand-over",), plant)

    return [bug(name, *facts) for name, facts in OUTBOX.items()]


class Overtaken:
    """A transport whose relay is overtaken after its hand-over, before it wrote the answer down."""

    name = "overtaken"

    def __init__(self, post: Post) -> None:
        self._post = post

    def session(self) -> Session:
        return self

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        delivery = self._post.arrived.session().deliver(mail, gate)
        self._post.expire()
        self._post.relay(self._post.arrived).run_once()
        return delivery

    def close(self) -> None: ...


class Late(Overtaken):
    """A transport whose relay comes to its gate when another one has claimed the message, and is on its way to its
    own."""

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        ends: list[Any] = []

        class OtherFirst(Overtaken):
            def deliver(self, other: Outgoing, its_gate: Gate) -> Delivery:
                try:
                    ends.append(self._post.arrived.session().deliver(mail, gate))
                except GateClosed as exc:
                    ends.append(exc)
                return self._post.arrived.session().deliver(other, its_gate)

        self._post.expire()
        self._post.relay(OtherFirst(self._post)).run_once()
        (end,) = ends
        if isinstance(end, GateClosed):
            raise end
        self._post.stale_hand_overs += 1
        delivery: Delivery = end
        return delivery


def hand_over(post: Post) -> None:
    """Under hold nothing arrives twice, whoever is overtaken where; and one key is one message."""
    for key, transport in (("before", Late(post)), ("after", Overtaken(post))):
        post.arrived.sent.clear()
        with post.engine.begin() as tx:
            Outbox(from_="a@example.org").put(tx, mail(1), key=key)
        post.relay(transport).run_once()
        assert not post.stale_hand_overs, "a relay that was overtaken passed its gate"
        copies = len(post.arrived.sent)
        assert copies == 1, f"a relay was overtaken {key} the hand-over: {copies} copies"
        assert row(post.engine, key)["state"] == "sent"
    with post.engine.begin() as tx:
        try:
            Outbox(from_="a@example.org").put(tx, mail(2), key="after")
        except KeyConflictError:
            return
    raise AssertionError("another content was taken under a known key")


def _suite(story: Story) -> Runner:
    def run(system: Any, max_examples: int, seed: int | None) -> tuple[str, int]:
        try:
            story(system)
        except (AssertionError, FencingError) as exc:
            return str(exc).partition("\n")[0] or type(exc).__name__, 1
        return "", 1

    return run


SUITES: Mapping[str, Runner] = {
    "failover": _suite(failover),
    "occurrences": _suite(occurrences),
    "hand-over": _suite(hand_over),
}
