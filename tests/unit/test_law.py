"""The law on its own: tokens, their order, verdicts, names of resources."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from fencing import Token, errors
from fencing._law import Mark, Verdict, check_resources, judge, order, reject

LATE = timedelta(seconds=3)
A, B = "11111111-aaaa", "22222222-bbbb"


def token(value: int, issuer: str = "shop", lineage: str = A) -> Token:
    return Token(value, issuer, lineage)


@pytest.mark.parametrize(
    ("mark", "presented", "verdict"),
    [
        (token(5), token(6), Verdict.ADVANCED),
        (token(5), token(6, lineage=B), Verdict.ADVANCED),
        (token(5), token(5), Verdict.REPEATED),
        (token(5), token(4), Verdict.STALE),
        (token(5, lineage=B), token(4), Verdict.STALE),
        (token(5, lineage=B), token(5), Verdict.LINEAGE_CONFLICT),
        (token(5, issuer="other"), token(9), Verdict.ISSUER_MISMATCH),
        (token(5, issuer="other"), token(5), Verdict.ISSUER_MISMATCH),
        (token(2**53), token(2**53 + 1), Verdict.ADVANCED),
        (token(2**53 + 1), token(2**53), Verdict.STALE),
        (token(2**63 - 1), token(2**63 - 2), Verdict.STALE),
        (token(9), token(10), Verdict.ADVANCED),
        (None, token(1), Verdict.ADVANCED),
    ],
)
def test_verdicts(mark: Token | None, presented: Token, verdict: Verdict) -> None:
    assert judge(mark, presented) is verdict


def test_a_missing_mark_is_refused_under_reject() -> None:
    assert judge(None, token(5), "reject") is Verdict.MARK_MISSING
    assert judge(token(4), token(5), "reject") is Verdict.ADVANCED


def test_a_rejection_carries_its_facts_through_pickle() -> None:
    with pytest.raises(errors.StaleTokenError) as caught:
        reject(Verdict.STALE, "invoice/1", token(4), Mark(token(5), "worker-b", None), "postgresql")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.resource, error.presented, error.mark, error.holder, error.downstream) == (
            "invoice/1",
            token(4),
            token(5),
            "worker-b",
            "postgresql",
        )
        assert all(word in str(error) for word in ("invoice/1", str(token(4)), str(token(5)), "worker-b", "postgresql"))


def test_a_floor_refuses_what_lies_below_it_where_there_is_no_mark() -> None:
    assert judge(None, token(4), floor=5) is Verdict.BELOW_FLOOR
    assert judge(None, token(4), "reject", 5) is Verdict.BELOW_FLOOR
    assert judge(None, token(5), floor=5) is Verdict.ADVANCED
    assert judge(token(3), token(4), floor=5) is Verdict.ADVANCED, "a mark that is there decides"


@pytest.mark.parametrize(
    ("mark", "floor", "late", "says", "facts"),
    [
        (Mark(token(5), "b", None), 0, None, f"mark {token(5)} set by b: ", (token(5), "b", None)),
        (Mark(token(5), "", None), 0, LATE, f"mark {token(5)} set by an unnamed holder: ", (token(5), "", LATE)),
        (None, 0, None, "no mark: ", (None, None, None)),
        (None, 7, None, "no mark, floor 7: ", (None, None, None)),
    ],
)
def test_a_rejection_says_what_was_met(
    mark: Mark | None, floor: int, late: timedelta | None, says: str, facts: tuple[object, ...]
) -> None:
    with pytest.raises(errors.StaleTokenError) as caught:
        reject(Verdict.STALE, "a", token(4), mark, "db", floor, late)
    assert (caught.value.mark, caught.value.holder, caught.value.late) == facts
    assert str(caught.value).startswith(f"db refused a write to 'a': presented {token(4)}, {says}")


def test_two_tokens_are_older_equal_or_newer_or_say_why_not() -> None:
    assert [order(token(value), token(5)) for value in (4, 5, 6)] == [-1, 0, 1]
    for other, kind, why in (
        (token(5, issuer="depot"), errors.IssuerMismatchError, "tokens of two issuers have no order"),
        (token(5, lineage=B), errors.LineageConflictError, "equal values of two lineages have no order"),
    ):
        with pytest.raises(kind) as caught:
            order(token(5), other)
        assert str(caught.value) == f"{why}: {token(5)} and {other}"
        assert (caught.value.presented, caught.value.mark) == (token(5), other)


def test_tokens_of_one_issuer_are_ordered() -> None:
    assert token(1) < token(2) <= token(2) < token(3, lineage=B)
    assert token(2**53 + 1) > token(2**53)
    assert sorted([token(30), token(4), token(100)]) == [token(4), token(30), token(100)]


def test_tokens_without_an_order_refuse_to_be_compared() -> None:
    with pytest.raises(errors.IssuerMismatchError):
        token(1) < token(2, issuer="other")  # noqa: B015
    with pytest.raises(errors.LineageConflictError):
        token(1) >= token(1, lineage=B)  # noqa: B015
    with pytest.raises(TypeError):
        token(1) < 2  # noqa: B015
    assert token(1) != token(1, lineage=B)


@pytest.mark.parametrize("value", [1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1])
def test_text_round_trip(value: int) -> None:
    assert Token.parse(str(token(value))) == token(value)


@pytest.mark.parametrize(
    "text",
    ["", "7", "shop/a", "shop/a/b/7", "shop/a/07", "shop/a/-7", "shop/a/+7", "shop/a/7.0", "shop/a/0", "Shop/a/7",
     "shop//7", f"shop/a/{2**63}", "shop/a/" + "9" * 5000, "shop/a/٧", "shop/a b/7", " shop/a/7"],
)  # fmt: skip
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Token.parse(text)


@pytest.mark.parametrize("value", ["7", 7.0, True, None, b"7"])
def test_values_that_are_no_whole_numbers_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="int"):
        Token(value, "shop", A)  # type: ignore[arg-type]


def test_resources_come_sorted_without_repeats() -> None:
    assert check_resources(("b", "a", "b", "ä")) == ("a", "b", "ä")


@pytest.mark.parametrize("name", ["", "x\x00y", "\ud800", "x" * 513, "ä" * 257])
def test_bad_resource_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="resource"):
        check_resources((name,))
    with pytest.raises(TypeError, match="str"):
        check_resources((7,))  # type: ignore[arg-type]


def test_a_resource_name_may_have_512_bytes() -> None:
    assert check_resources(("ä" * 256,)) == ("ä" * 256,)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        (7, TypeError, "a resource is named by a str, not int (7)"),
        ("", ValueError, "a resource's name is empty; name what the write changes, for example 'invoice/42'"),
        (
            "x" * 513,
            ValueError,
            f"a resource's name has at most 512 bytes of UTF-8, this one 513: {'x' * 60!r}…",
        ),
    ],
)
def test_a_bad_resource_name_is_told_as_what_it_is(name: object, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as caught:
        check_resources((name,))  # type: ignore[arg-type]
    assert str(caught.value) == says


def test_a_rejection_without_a_floor_names_none() -> None:
    with pytest.raises(errors.MarkMissingError, match="no mark: the resource has no mark"):
        reject(Verdict.MARK_MISSING, "a", token(4), None, "db")
