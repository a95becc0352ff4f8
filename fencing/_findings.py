"""Findings: what a doctor's check says, in one shape for every downstream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warning", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of one check.

    ``severity``: ``"ok"``; ``"warning"``: a promise hangs on something that is not assured here; ``"broken"``: a
    promise does not hold. ``breaks`` says which promise and how, ``remedy`` what to do; both empty when all is well.
    """

    check: str
    severity: Severity
    where: str
    message: str
    breaks: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.severity != "ok" and not (self.breaks and self.remedy):
            raise ValueError(f"finding {self.check!r} is {self.severity} and must say what it breaks and what to do")
