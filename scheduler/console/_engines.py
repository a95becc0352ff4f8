"""Databases and mail servers named on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click
import psycopg
import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError

from scheduler.console._options import attribute_of

if TYPE_CHECKING:
    from adapters.email import Transport

SMTP_PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
"""The schemes of a mail server's address, with their usual ports."""


def engine_of(text: str) -> sqlalchemy.Engine:
    """Return the engine that a SQLAlchemy URL, a libpq connection string or MODULE:ENGINE names."""
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme in ("postgresql", "postgres"):
            scheme = "postgresql+psycopg"
        try:
            return there(sqlalchemy.create_engine(f"{scheme}://{rest}"))
        except SQLAlchemyError as exc:
            raise click.UsageError(f"no database under this URL: {exc}") from exc
    if "=" in text:
        return sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(text))
    found = attribute_of(text, "--target")
    if not isinstance(found, sqlalchemy.Engine):
        raise click.UsageError(f"--target: {text} is a {type(found).__name__}, not a SQLAlchemy Engine")
    return found


def there(engine: sqlalchemy.Engine) -> sqlalchemy.Engine:
    """Return the engine, if it is not one on a file of SQLite that does not exist: the first look would make it, and
    then nothing is in it."""
    file = engine.url.database or ""
    memory = file in ("", ":memory:") or file.startswith("file:")
    if engine.dialect.name == "sqlite" and not memory and not Path(file).exists():
        raise click.ClickException(
            f"no SQLite database at {Path(file).absolute()}: there is no such file; nothing was made"
        )
    return engine


def outbox_engine_of(text: str) -> sqlalchemy.Engine:
    """As :func:`engine_of`, for a database in which the outbox can stand."""
    from adapters.email._sql import check_dialect  # its extra is needed for mail alone

    engine = engine_of(text)
    try:
        check_dialect(engine.dialect.name)
    except TypeError as exc:
        raise click.UsageError(f"--target: {exc}") from exc
    return engine


@contextmanager
def transaction(engine: sqlalchemy.Engine) -> Iterator[sqlalchemy.Connection]:
    """A transaction for one command; a database that is not there is one line for the person, not a traceback."""
    try:
        with engine.begin() as connection:
            yield connection
    except SQLAlchemyError as exc:
        where = engine.url.render_as_string()
        raise click.ClickException(f"{where}: {str(getattr(exc, 'orig', None) or exc).strip()}") from exc
    finally:
        engine.dispose()


def transport_of(text: str) -> Transport:
    """Return the transport that a mail server's URL or MODULE:TRANSPORT names."""
    from adapters.email import SmtpTransport  # its extra is needed for mail alone

    if "://" not in text:
        found = attribute_of(text, "--transport")
        if not isinstance(getattr(found, "name", None), str) or not callable(getattr(found, "session", None)):
            raise click.UsageError(f"--transport: {text} is a {type(found).__name__}, without name and session()")
        transport: Transport = found
        return transport
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise click.UsageError(f"--transport: {exc}") from exc
    if parts.scheme not in SMTP_PORTS:
        raise click.UsageError(
            f"--transport takes {', '.join(f'{name}://' for name in SMTP_PORTS)} or MODULE:TRANSPORT"
        )
    if not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise click.UsageError("--transport takes SCHEME://[USER[:PASSWORD]@]HOST[:PORT] and nothing behind it")
    return SmtpTransport(
        parts.hostname,
        port or SMTP_PORTS[parts.scheme],
        starttls=parts.scheme == "smtp+starttls",
        tls=parts.scheme == "smtps",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or "")
        or (os.environ.get("FENCING_SMTP_PASSWORD", "") if parts.username else ""),
    )
