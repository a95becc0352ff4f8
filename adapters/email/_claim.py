"""A claim, and the audit of what is done under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adapters._tx import Statement
from adapters.email._sql import now
from fencing import Token

MINE = "owner = :owner and issuer = :issuer and lineage = :lineage and token = :token"
"""The claim is still the one that was given: exactly this owner and token."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who claims: an owner that is unique per relay, under the token of this batch, for ``lease`` seconds."""

    owner: str
    token: Token
    lease: float

    def params(self) -> dict[str, Any]:
        """The claim as parameters."""
        return {
            "owner": self.owner,
            "issuer": self.token.issuer,
            "lineage": self.token.lineage,
            "token": self.token.value,
        }


def event_row(
    number: int, kind: str, claim: Claim, outcome: str, detail: str, dialect: str, *, dispatch: str | None = None
) -> Statement:
    """One line of the audit: what the relay did to the row, under which token, and what came of it."""
    return Statement(
        "insert into fencing_outbox_event (outbox_id, at, kind, actor, token, dispatch, outcome, detail) "
        f"values (:id, {now(dialect)}, :kind, :actor, :token, :dispatch, :outcome, :detail)",
        {
            "id": number,
            "kind": kind,
            "actor": claim.owner,
            "token": str(claim.token),
            "dispatch": dispatch,
            "outcome": outcome,
            "detail": detail,
        },
    )
