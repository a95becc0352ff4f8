"""The fencing token: a number that grows with every claim, and where it comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from fencing import _law

MAX_VALUE = 2**63 - 1
"""The largest token value: what a signed 64-bit column holds."""

_ISSUER = re.compile(r"[a-z0-9._-]{1,63}", re.ASCII)
_LINEAGE = re.compile(r"[!-.0-~]{1,64}", re.ASCII)


@lru_cache(maxsize=256)
def _check_origin(issuer: str, lineage: str) -> None:
    """Raise ``ValueError`` for a name that is not well formed. Remembered: an issuer makes many tokens."""
    if not _ISSUER.fullmatch(issuer):
        raise ValueError(f"an issuer is 1 to 63 of a-z 0-9 . _ -, not {issuer!r}")
    if not _LINEAGE.fullmatch(lineage):
        raise ValueError(f"a lineage is 1 to 64 visible ASCII characters without '/', not {lineage!r}")


@dataclass(frozen=True, slots=True)
class Token:
    """A fencing token (Kleppmann 2016, "How to do distributed locking").

    ``value`` is a whole number from 1 to 2**63 - 1. ``issuer`` names the counter it comes from; tokens of two
    issuers have no order. ``lineage`` tells two servers apart that both believe to be that issuer (after a
    failover): equal values of two lineages have no order either.

    ``==`` compares all three fields. ``<``, ``<=``, ``>``, ``>=`` raise :class:`~fencing.errors.IssuerMismatchError` or
    :class:`~fencing.errors.LineageConflictError` where there is no order. Text form: ``issuer/lineage/value``.

    Raises ``TypeError`` for a value that is not an ``int`` (a random string or a float is no token) and
    ``ValueError`` for one out of range, or for an issuer or lineage that is not well formed.
    """

    value: int
    issuer: str
    lineage: str

    def __post_init__(self) -> None:
        if type(self.value) is not int:
            raise TypeError(
                f"a token's value is an int, not {type(self.value).__name__} ({self.value!r}): "
                "fencing needs numbers with one order, not random or floating values"
            )
        if not 1 <= self.value <= MAX_VALUE:
            raise ValueError(f"a token's value lies between 1 and 2**63 - 1, not {self.value}")
        if not isinstance(self.issuer, str) or not isinstance(self.lineage, str):
            raise TypeError(f"a token's issuer and lineage are text, not {self.issuer!r} and {self.lineage!r}")
        _check_origin(self.issuer, self.lineage)

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read ``issuer/lineage/value``. Raises ``ValueError`` for anything else, ``TypeError`` if it is no text."""
        if not isinstance(text, str):
            raise TypeError(f"Token.parse takes text, not {type(text).__name__}")
        parts = text.split("/")
        if len(parts) != 3 or not parts[2].isascii() or not parts[2].isdecimal() or parts[2] != parts[2].lstrip("0"):
            raise ValueError(f"a token is written issuer/lineage/value with a decimal value, not {text!r}")
        if len(parts[2]) > len(str(MAX_VALUE)):
            raise ValueError(f"a token's value lies between 1 and 2**63 - 1, not {parts[2][:24]}…")
        return cls(int(parts[2]), parts[0], parts[1])

    def __str__(self) -> str:
        return f"{self.issuer}/{self.lineage}/{self.value}"

    def __lt__(self, other: object) -> bool:
        return _law.order(self, other) < 0 if isinstance(other, Token) else NotImplemented

    def __le__(self, other: object) -> bool:
        return _law.order(self, other) <= 0 if isinstance(other, Token) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return _law.order(self, other) > 0 if isinstance(other, Token) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return _law.order(self, other) >= 0 if isinstance(other, Token) else NotImplemented


_set_value, _set_issuer, _set_lineage = (Token.__dict__[name].__set__ for name in ("value", "issuer", "lineage"))


def issued(value: int, issuer: str, lineage: str) -> Token:
    """For issuers: the token with a value that came from a counter of theirs, a whole number from 1 in 64 bits.

    Not looked at again, which takes most of the time that it takes to make a token.
    """
    _check_origin(issuer, lineage)
    token: Token = _new(Token)
    _set_value(token, value)
    _set_issuer(token, issuer)
    _set_lineage(token, lineage)
    return token


_new = object.__new__
