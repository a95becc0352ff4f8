"""Where the demo's servers are, and what its things are called there. Passed to the workers as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import URL

from scheduler._connect import normalise_dsn


@dataclass(frozen=True, slots=True)
class Addresses:
    """``dsn`` and ``schema`` are the scheduler's, ``shop_schema`` is for the shop's tables in the same database.
    ``prefix`` begins every name that the shop uses in Redis: "" in a server of our own."""

    dsn: str
    schema: str
    shop_schema: str
    redis: str
    smtp_host: str
    smtp_port: int
    prefix: str

    def invoice(self, moment: datetime) -> str:
        """The resource that stands for the invoice of a month."""
        return f"{self.prefix}invoice/{moment:%Y-%m}"

    @property
    def shop_dsn(self) -> str:
        """The shop's database for psycopg: its tables are found without naming their schema."""
        given = conninfo_to_dict(normalise_dsn(self.dsn)).get("options") or ""
        return make_conninfo(normalise_dsn(self.dsn), options=f"{given} -csearch_path={self.shop_schema}".strip())

    @property
    def shop_url(self) -> URL:
        """The same for SQLAlchemy."""
        parts = {name: str(value) for name, value in conninfo_to_dict(self.shop_dsn).items() if value is not None}
        return URL.create(
            "postgresql+psycopg",
            username=parts.pop("user", None),
            password=parts.pop("password", None),
            database=parts.pop("dbname", None),
            query=parts,
        )
