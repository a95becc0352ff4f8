"""Downstreams named on the command line."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterable
from typing import Any

import click

from fencing import AsyncGuard, Finding
from fencing._registry import guard_for


def diagnose_target(text: str) -> Iterable[Finding]:
    """Ask the guard of the named downstream what is wrong with it."""
    guard = guard_for(_target(text))
    if isinstance(guard, AsyncGuard):
        return asyncio.run(_adiagnose(guard))
    return guard.diagnose()


async def _adiagnose(guard: AsyncGuard[Any]) -> Iterable[Finding]:
    return await guard.adiagnose()


def _target(text: str) -> Any:
    if "://" in text:
        return _from_url(text)
    module_name, _, attribute = text.partition(":")
    if not attribute:
        raise click.UsageError(f"--target takes a URL or MODULE:ATTRIBUTE, not {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    return getattr(importlib.import_module(module_name), attribute)


def _from_url(url: str) -> Any:
    scheme = url.partition("://")[0]
    if scheme in ("redis", "rediss", "unix", "valkey", "valkeys"):
        try:
            import redis
        except ModuleNotFoundError as exc:
            raise click.ClickException("a redis:// target needs redis: pip install 'fencing-toolkit[redis]'") from exc
        return redis.Redis.from_url(url.replace("valkey", "redis", 1))
    import sqlalchemy

    if scheme in ("postgresql", "postgres"):
        url = "postgresql+psycopg" + url[len(scheme) :]
    return sqlalchemy.create_engine(url)
