"""Fencing tokens that downstream systems enforce.

A worker takes a lease, is paused, its lease expires, another takes over, the first wakes up and writes on. Only the
system that it writes to can refuse, by looking at a number that grows with every claim. :func:`fenced_write` makes it
look.
"""

from fencing import errors
from fencing._explain import Explanation, explain, list_marks
from fencing._findings import Finding
from fencing._law import Mark, Verdict, judge, reject
from fencing._lease import Lease, current_lease
from fencing._ports import AsyncGuard, Guard, LeaseSource
from fencing._refusals import Refusal, on_refusal, recent_refusals, refusal_counts
from fencing._token import Token
from fencing._write import fenced_write, raise_fence, read_mark

__all__ = [
    "AsyncGuard",
    "Explanation",
    "Finding",
    "Guard",
    "Lease",
    "LeaseSource",
    "Mark",
    "Refusal",
    "Token",
    "Verdict",
    "current_lease",
    "errors",
    "explain",
    "fenced_write",
    "judge",
    "list_marks",
    "on_refusal",
    "raise_fence",
    "read_mark",
    "recent_refusals",
    "refusal_counts",
    "reject",
]
