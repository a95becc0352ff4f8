"""What the examples of the contract are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fencing._law import OnMissing
from fencing._token import Token
from fencing.testing._downstream import Capability
from fencing.testing._harness import Harness, Writer

Test = TypeVar("Test", bound=Callable[..., Any])


def needs(*wanted: Capability, on_missing: OnMissing | None = None) -> Callable[[Test], Test]:
    """Mark an example that a downstream without these capabilities leaves out, and the policy that it is about."""

    def mark(test: Test) -> Test:
        test.__dict__.update(needs=wanted, on_missing=on_missing)
        return test

    return mark


def writer(value: int, holder: str = "", issuer: str = "shop", lineage: str = "l1") -> Writer:
    """Somebody with a token of that number."""
    return Writer(holder or f"worker-{value}", Token(value, issuer, lineage))


# As doubles the two numbers are one.
OLDER, NEWER = writer(2**53, "ada"), writer(2**53 + 1, "bob")


def marked(harness: Harness, resource: str, by: Writer) -> None:
    """The resource's mark is this writer's."""
    mark = harness.mark(resource)
    assert mark is not None, f"{resource!r} has no mark, where {by} has raised it"
    assert (mark.token, mark.holder) == (by.token, by.holder)
