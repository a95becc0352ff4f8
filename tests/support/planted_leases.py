"""Planted bugs in the scheduler's own lease SQL: one small fault each, on a real server, for the machine of leases."""

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import partial

from fencing.testing import PlantedBug
from support.lease_systems import Edits, JobLeases, NamedLeases, editing
from support.planted import disposing, edited

WORKERS = "procrastinate, pgqueuer, apscheduler 4 (measured)"
REUSED = "oban #862, goatbeat (source)"
UNKNOWN = "no report known"


def _change(old: str, new: str = "") -> Callable[[str], str]:
    return lambda text: edited(text, old, new)


BY_OWNER = _change(" and token = %(token)s")
BY_NAME = _change(" and owner = %(owner)s and token = %(token)s")
TAKEN = "where l.lease_until < excluded.acquired_at"

NAMED: dict[str, tuple[str, Edits]] = {
    "release by owner": ("fencekit (measured)", {"lease_release": BY_OWNER}),
    "release by name": ("a lock deleted by its key", {"lease_release": BY_NAME}),
    "a live lease is taken": ("pgqueuer #430, #323", {"lease_acquire": _change(TAKEN, "where true")}),
    "held twice by one owner": (
        "oban #862",
        {"lease_acquire": _change(TAKEN, f"{TAKEN.replace('where ', 'where (')} or l.owner = excluded.owner)")},
    ),
    "same owner, same token": (
        REUSED,
        {
            "lease_acquire": _change(
                "token = excluded.token",
                "token = case when l.owner = excluded.owner then l.token else excluded.token end",
            )
        },
    ),
    "count() + 1": (
        "StarRocks #12138",
        {"lease_acquire": _change("nextval({token_literal})", "(select count(*) + 1 from {schema}.lease)")},
    ),
    "renewal by owner": (
        UNKNOWN,
        {
            "lease_renew": lambda text: (
                """
                select t.token, true
                from {schema}.lease l, unnest(%(names)s::text[], %(tokens)s::bigint[]) t(name, token)
                where l.name = t.name and l.owner = %(owner)s"""
            )
        },
    ),
    "a renewal revives": (
        UNKNOWN,
        {
            "lease_renew": lambda text: (
                """
                insert into {schema}.lease as l (name, owner, token, lineage, acquired_at, lease_until)
                select distinct on (s.name) s.name, %(owner)s, s.token, 'x', {schema}.clock(), 'infinity'
                from unnest(%(names)s::text[], %(tokens)s::bigint[]) s(name, token)
                on conflict (name) do update set owner = excluded.owner, token = excluded.token,
                    lease_until = excluded.lease_until
                returning l.token, true"""
            )
        },
    ),
}
SETTLED_TOKEN = " and j.token = (%(tokens)s::bigint[])[width_bucket(j.id, %(ids)s::bigint[])]"
NEW_TOKEN = "(select tokens from picked)[width_bucket(j.id, (select ids from picked))]"

CLAIMS: dict[str, tuple[str, Edits]] = {
    "completed by owner": (WORKERS, {"complete": _change(SETTLED_TOKEN)}),
    "completed by id": (WORKERS, {"complete": _change(f"{SETTLED_TOKEN} and j.owner = %(owner)s")}),
    "given back by owner": (
        WORKERS,
        {
            "settle": lambda text: re.sub(
                r"->\s*[js]\.token::text",
                "-> (%(tokens)s::bigint[])[1]::text",
                edited(text, SETTLED_TOKEN, ""),
            )
        },
    ),
    "rescue of a live lease": ("hexpm #1825", {"rescue": lambda text: edited(text, "lease_until <", "claimed_at <")}),
    "same owner, same token": (
        REUSED,
        dict.fromkeys(
            ("claim", "claim_lane"),
            _change(f"token = {NEW_TOKEN}", f"token = case when j.owner = %(owner)s then j.token else {NEW_TOKEN} end"),
        ),
    ),
    "a running job is claimed": (
        "pgqueuer #430, #323",
        dict.fromkeys(
            ("claim_arm", "claim_lane", "lanes"), _change("status = 'ready'", "status in ('ready', 'leased')")
        ),
    ),
    "a renewal revives": (
        UNKNOWN,
        {
            "renew": lambda text: (
                """
                update {schema}.job j set status = 'leased', token = t.token, owner = %(owner)s
                from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) t(id, token) where j.id = t.id
                returning j.token, true"""
            )
        },
    ),
    "renewal by owner": (
        UNKNOWN,
        {
            "renew": lambda text: (
                """
                select t.token, true from {schema}.job j, unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) t(id, token)
                where j.id = t.id and j.owner = %(owner)s and j.status = 'leased'"""
            )
        },
    ),
}


def named_bugs(dsn: str) -> list[PlantedBug]:
    """Faults in ``lease_*.sql``."""
    return [_bug(name, *facts, "lease SQL", lambda: NamedLeases(dsn)) for name, facts in NAMED.items()]


def claim_bugs(dsn: str) -> list[PlantedBug]:
    """Faults in the statements that claim, renew, settle and rescue jobs."""

    def make(statements: Edits) -> JobLeases:
        # What gives a job back is met sooner where nothing else ends one.
        return JobLeases(dsn, completes=() if "settle" in statements else JobLeases.COMPLETES)

    return [_bug(name, *facts, "claim SQL", partial(make, facts[1])) for name, facts in CLAIMS.items()]


def _bug(name: str, seen_at: str, edits: Edits, layer: str, make: Callable[[], NamedLeases | JobLeases]) -> PlantedBug:
    @contextlib.contextmanager
    def plant() -> Iterator[NamedLeases | JobLeases]:
        with editing(edits), disposing(make()) as made:
            yield made

    return PlantedBug(name, seen_at, layer, ("leases",), plant)
