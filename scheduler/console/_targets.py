"""Downstreams named on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from sqlalchemy import Engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from fencing import AsyncGuard, Finding, Guard, Mark
from fencing._explain import ListsMarks, ListsMarksAsync
from fencing._registry import guard_for
from fencing.errors import FencingError
from scheduler.console._options import attribute_of

LISTED = 100_000
"""How many marks of a downstream are compared with the issuer."""


@dataclass(frozen=True, slots=True)
class Issued:
    """An issuer's name, and the newest number that it has given out."""

    issuer: str
    newest: int


def diagnose_target(text: str, issued: Issued | None = None) -> Iterable[Finding]:
    """Ask the guard of the named downstream what is wrong with it; and whether its marks are beyond the issuer."""
    target = target_of(text)
    try:
        guard = guard_for(target)
    except TypeError as exc:
        raise click.UsageError(f"--target: {exc}") from exc
    try:
        if isinstance(guard, AsyncGuard):
            return asyncio.run(_adiagnose(guard, issued))
        return [*_diagnose(guard, issued), *_diagnose_outbox(guard.downstream, target)]
    except (FencingError, SQLAlchemyError) as exc:
        why = str(getattr(exc, "orig", None) or exc).strip()
        return [
            Finding(
                "reachable",
                "broken",
                guard.downstream,
                why,
                "nothing is known about it, and no fenced write can be made there",
                "see that the server runs, that its address is right and that it lets this user in",
            )
        ]


def _diagnose(guard: Guard[Any], issued: Issued | None) -> list[Finding]:
    found = list(guard.diagnose())
    if issued and isinstance(guard, ListsMarks) and not _is_broken(found):
        found.append(compare(guard.downstream, guard.list_marks("", LISTED), issued))
    return found


async def _adiagnose(guard: AsyncGuard[Any], issued: Issued | None) -> list[Finding]:
    found = list(await guard.adiagnose())
    if issued and isinstance(guard, ListsMarksAsync) and not _is_broken(found):
        found.append(compare(guard.downstream, await guard.alist_marks("", LISTED), issued))
    return found


def _diagnose_outbox(downstream: str, target: Any) -> Iterable[Finding]:
    """Look at the outbox too, where the database has one."""
    if not isinstance(target, Engine) or not inspect(target).has_table("fencing_outbox"):
        return []
    try:
        from adapters.email import diagnose
    except ModuleNotFoundError as exc:
        return [
            Finding(
                "outbox",
                "warning",
                downstream,
                f"there is an outbox, and {exc.name} is not installed",
                "nothing is known about its mail",
                "pip install 'fencing-toolkit[email]'",
            )
        ]
    return diagnose(target)


def _is_broken(found: list[Finding]) -> bool:
    return any(finding.severity == "broken" for finding in found)


def compare(downstream: str, marks: Sequence[tuple[str, Mark]], issued: Issued) -> Finding:
    """Say whether a mark holds a number that its issuer has not given out yet: then the issuer has fallen back."""
    ours = [(name, mark) for name, mark in marks if mark.token.issuer == issued.issuer]
    beyond = [(name, mark) for name, mark in ours if mark.token.value > issued.newest]
    if not beyond:
        return Finding(
            "issuer",
            "ok",
            downstream,
            f"{len(ours)} of {len(marks)} marks are the issuer's, none beyond {issued.newest}",
        )
    name, mark = max(beyond, key=lambda pair: pair[1].token.value)
    return Finding(
        "issuer",
        "broken",
        downstream,
        f"{len(beyond)} marks are beyond what {issued.issuer} has issued ({issued.newest}): the highest is "
        f"{mark.token.value} of {name!r}",
        "the issuer has fallen back, by a restore of data alone or a snapshot: its new tokens are refused there, and "
        "elsewhere they repeat numbers that were given out",
        "fencing issuer bump --reason ..., until this check is content",
    )


def target_of(text: str) -> Any:
    """Return the downstream that a URL or MODULE:ATTRIBUTE names."""
    return _from_url(text) if "://" in text else attribute_of(text, "--target")


def _from_url(url: str) -> Any:
    scheme = url.partition("://")[0]
    if scheme in ("redis", "rediss", "unix", "valkey", "valkeys"):
        try:
            import redis
        except ModuleNotFoundError as exc:
            raise click.ClickException("a redis:// target needs redis: pip install 'fencing-toolkit[redis]'") from exc
        return redis.Redis.from_url(url.replace("valkey", "redis", 1))
    import sqlalchemy

    from scheduler.console._engines import there

    if scheme in ("postgresql", "postgres"):
        url = "postgresql+psycopg" + url[len(scheme) :]
    try:
        return there(sqlalchemy.create_engine(url))
    except SQLAlchemyError as exc:
        raise click.UsageError(f"--target: no database under this URL: {exc}") from exc
