"""The rules of marks, tokens and claims. Two events show each breach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter

from fencing._law import Verdict, judge
from fencing._token import Token
from fencing.history._extremes import Highest, Lowest, Sorted
from fencing.history._violations import MakeViolation, Rule, Step, Violation, sure


def check_mark(
    steps: Sequence[Step], refused: Sequence[Step], unrecorded: Sequence[Step], violation: MakeViolation
) -> Iterator[Violation]:
    """Hold the answers of one resource, for tokens of one issuer, against a mark that only rises.

    ``unrecorded``: claims of actors that were killed, in the order in which they began. They may have raised a mark and
    left no record of it.
    """
    answered = [step for step in steps if step.event.outcome != "unknown"]
    raised = Highest([step for step in steps if sure(step.event)])
    met = Highest(refused)
    for step in answered:
        newer = raised.before(step.began)
        if newer is not None and newer.value > step.value:
            yield violation(
                "stale write accepted",
                f"{step.token} was accepted after {newer.token} had been accepted",
                newer.event,
                step.event,
            )
            continue
        higher = met.before(step.began)
        if higher is not None and higher.value >= step.value:
            yield violation(
                "stale write accepted",
                f"{step.token} was accepted after {higher.token} had been refused as stale: the mark fell",
                higher.event,
                step.event,
            )
    # A refusal needs a higher mark: one that some step raised (or may have raised), or one from before the history.
    # The higher the mark, the fewer later answers it allows: so the lowest that explains the refusal is the one to try.
    lowest = min(answered, key=attrgetter("value"), default=None)
    later = Lowest(answered)
    raising = sorted((step for step in steps if not _undone(step, later)), key=attrgetter("began"))
    seen, unseen = Sorted(), Sorted()
    position = passed = 0
    for step in sorted(refused, key=attrgetter("ended")):
        while position < len(raising) and raising[position].began <= step.ended:
            seen.add(raising[position].value)
            position += 1
        if lowest is None or lowest.value > step.value:
            continue  # the mark may have been higher from the beginning
        needed = seen.above(step.value)
        after = later.after(step.ended)
        if needed is None or (after is not None and step.value < after.value < needed):
            # Looked for only now: they are as many as the whole history's, not the resource's.
            while passed < len(unrecorded) and unrecorded[passed].began <= step.ended:
                unseen.add(unrecorded[passed].value)
                passed += 1
            candidates = (needed, unseen.above(step.value))
            needed = min((value for value in candidates if value is not None), default=None)
        if needed is None:
            yield violation(
                "refused without cause",
                f"{step.token} was refused as stale, and nothing newer was ever presented; {lowest.token} was accepted",
                lowest.event,
                step.event,
            )
        elif after is not None and step.value < after.value < needed:
            yield violation(
                "refused without cause",
                f"{step.token} was refused as stale when only {needed} or higher can have been the reason, "
                f"and later {after.token} was accepted",
                step.event,
                after.event,
            )


def _undone(step: Step, later: Lowest) -> bool:
    """Whether a pending step must have been rolled back: a lower token was accepted afterwards."""
    after = later.after(step.ended) if step.event.pending else None
    return after is not None and after.value < step.value


def two_issuers(issuers: dict[str, list[Step]], violation: MakeViolation) -> Iterator[Violation]:
    answered = [[s for s in steps if s.event.outcome != "unknown"] for steps in issuers.values()]
    firsts = sorted((steps[0] for steps in answered if steps), key=attrgetter("began"))
    for first, other in pairwise(firsts):
        yield violation(
            "two issuers on one resource",
            f"{first.token} and {other.token} were both accepted, and have no order",
            first.event,
            other.event,
        )


def two_lineages(steps: Sequence[Step], violation: MakeViolation) -> Iterator[Violation]:
    first: dict[int, Step] = {}
    for step in steps:
        if step.event.outcome == "unknown":
            continue
        other = first.setdefault(step.value, step)
        if judge(other.token, step.token) is Verdict.LINEAGE_CONFLICT:
            yield violation(
                "two lineages with one number",
                f"{other.token} and {step.token} were both accepted",
                other.event,
                step.event,
            )


def check_issuer(claims: Sequence[Step]) -> Iterator[Violation]:
    """Tokens of one issuer never repeat, and grow from one claim to the next."""

    def violation(rule: Rule, text: str, before: Step, after: Step) -> Violation:
        place = after.event
        return Violation(rule, place.downstream, ", ".join(place.resources), text, (before.event, after.event))

    highest = Highest(claims)
    first: dict[Token, Step] = {}
    for step in claims:
        other = first.setdefault(step.token, step)
        if other is not step:
            yield violation("token repeated", f"{step.token} was given to two claims", other, step)
            continue
        before = highest.before(step.began)
        if before is not None and before.value >= step.value:
            yield violation("token fell", f"{step.token} was given out after {before.token}", before, step)


def check_settled(claims: Sequence[Step], settled: Sequence[Step], violation: MakeViolation) -> Iterator[Violation]:
    newest = Highest(claims)
    first: dict[Token, Step] = {}
    for step in settled:
        claim = newest.before(step.began)
        if claim is not None and claim.value > step.value:
            yield violation(
                "settled by an older holder",
                f"{step.token} settled it after {claim.token} had claimed it",
                claim.event,
                step.event,
            )
        other = first.setdefault(step.token, step)
        if other is not step:
            yield violation("settled twice", f"{step.token} settled it twice", other.event, step.event)
