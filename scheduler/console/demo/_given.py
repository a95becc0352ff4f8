"""Servers that the caller gave instead of those that the demo starts."""

from __future__ import annotations

import smtplib
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller gave: a database, a Redis, a mail server (host, port). None for one of our own."""

    dsn: str | None = None
    redis: str | None = None
    smtp: tuple[str, int] | None = None


def look_at(given: Given) -> dict[str, str]:
    """Return what the given servers are, by kind: ``{"postgres": "18.6", "redis": "7.0.15"}``.

    Raises ``click.ClickException`` that names the option whose server cannot be used.
    """
    versions = {}
    if given.dsn:
        versions["postgres"] = _postgres_version(given.dsn)
    if given.redis:
        kind, version = _redis_version(given.redis)
        versions[kind] = version
    if given.smtp:
        _greet(*given.smtp)
    return versions


def _postgres_version(dsn: str) -> str:
    import psycopg

    from scheduler._connect import normalise_dsn

    try:
        with psycopg.connect(normalise_dsn(dsn), connect_timeout=10) as connection:
            number = connection.info.server_version
    except (psycopg.Error, ValueError) as exc:
        raise click.ClickException(f"--dsn: no PostgreSQL can be used there: {exc}") from exc
    return f"{number // 10000}.{number % 10000}"


def _redis_version(url: str) -> tuple[str, str]:
    import redis

    try:
        with redis.Redis.from_url(url, socket_connect_timeout=10) as client:
            facts: Any = client.info("server")
    except (redis.RedisError, ValueError) as exc:
        raise click.ClickException(f"--redis: no Redis or Valkey can be used there: {exc}") from exc
    if "valkey_version" in facts:
        return "valkey", str(facts["valkey_version"])
    return "redis", str(facts["redis_version"])


def _greet(host: str, port: int) -> None:
    try:
        with smtplib.SMTP(host, port, timeout=10) as server:
            server.noop()
    except OSError as exc:
        raise click.ClickException(f"--smtp: no mail server can be used at {host}:{port}: {exc}") from exc
