"""The fields of a request: what is written is read back, and nothing else is read."""

from __future__ import annotations

import contextlib
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.http import Fence, FenceFieldError, FenceMissingError, fence_from
from adapters.http._fields import MAX_LENGTH, parse_item, parse_list, serialize_item, serialize_string
from fencing import Token

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=60)
tokens = st.builds(
    Token,
    st.integers(1, 2**63 - 1),
    st.text("abcz09._-", min_size=1, max_size=8),
    st.text(string.ascii_letters + '~!"\\;,=%', min_size=1, max_size=12),
)
keys = st.none() | texts.filter(str.isprintable)
scope_of = lambda fields: {  # noqa: E731
    "type": "http",
    "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()],
}


@given(st.lists(texts, min_size=1, max_size=4, unique=True), tokens, texts.filter(str.isprintable), keys)
@example(['a"b\\', "%é", "a, b;c=d"], Token(2**53 + 1, "a", "b"), "host:1", "k")
def test_what_is_shown_is_read(names: list[str], token: Token, holder: str, key: str | None) -> None:
    shown = Fence(tuple(sorted(names)), token, holder, key)
    fields = shown.fields()
    assert all(value.isascii() and value.isprintable() for value in fields.values())
    assert fence_from(scope_of(fields)) == shown


@given(st.text(max_size=80) | st.text(string.printable, max_size=80))
def test_anything_else_is_refused_and_never_an_accident(text: str) -> None:
    for parse in (parse_list, parse_item):
        with contextlib.suppress(ValueError):
            parse(text)
    encodable = text.encode("latin-1", "ignore")
    with contextlib.suppress(FenceFieldError, FenceMissingError):
        fence_from({"headers": [(b"fencing-token", encodable)]})


@given(st.data(), st.integers(0, 60), st.characters(codec="ascii"))
def test_a_field_with_one_character_changed_is_another_or_refused(data: st.DataObject, at: int, other: str) -> None:
    field = '"invoice/42";token="shop/a/43";holder="w-1"'
    changed = field[:at] + other + field[at + 1 :]
    try:
        fence = fence_from({"headers": [(b"fencing-token", changed.encode())]})
    except (FenceFieldError, FenceMissingError):
        return
    again = fence_from(scope_of(fence.fields()))
    assert again == fence


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        ('  "a"  ', [("a", {})]),
        ('"a" ,\t"b"', [("a", {}), ("b", {})]),
        ('"a";  x;y=1.5;z="v";z="w"', [("a", {"x": None, "y": None, "z": "w"})]),
        ('"a";x=?1;y=:aGk=:;t=@-5;u=tok/en;*v=-12', [("a", dict.fromkeys(("x", "y", "t", "u", "*v")))]),
        ('%"f%c3%bc"', [("fü", {})]),
        ('"\\"\\\\"', [('"\\', {})]),
    ],
)
def test_lists(text: str, items: object) -> None:
    assert parse_list(text) == items


@pytest.mark.parametrize(
    "text",
    [
        "a", "1", '"a', '"a" "b"', '"a",', ',"a"', '"a";', '"a";X',
        '"a";x=', '"a" ;x', '"a";x =1', "'a'", '"\\n"', '"é"',
        '("a" "b")', '%"%C3%BC"', '%"%ff"', '%"%4"', '"a";x=1234567890123456', '"a";x=1.2345', '"\x7f"',
        "\t\"a\"", '"a"' + " " * MAX_LENGTH + ",",
    ],
)  # fmt: skip
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError):
        parse_list(text)


@given(texts)
def test_a_string_is_ascii_on_the_way(text: str) -> None:
    written = serialize_string(text)
    assert written.isascii()
    assert written.isprintable()
    assert parse_item(serialize_item(text, [("a", text)])) == (text, {"a": text})
