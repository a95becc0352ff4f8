"""Keys: one slot for a resource's mark and data, whatever the name; no two resources alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from adapters.redis import redis_key
from adapters.redis._keys import MARK_PREFIX, mark_key, resource_of

names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=40)


@given(names, names)
def test_mark_and_data_share_a_slot(resource: str, name: str) -> None:
    key = redis_key(resource, name)
    assert key_slot(key.encode()) == key_slot(mark_key(resource).encode())
    assert key.endswith(f":{name}")
    assert not key.encode().startswith(MARK_PREFIX)
    assert mark_key(resource).encode().startswith(MARK_PREFIX)


@given(names, names)
@example("{", "%7B")
@example("a}b", "a%7Db")
@example("%", "%25")
def test_two_resources_never_share_a_mark(one: str, other: str) -> None:
    assert (mark_key(one) == mark_key(other)) == (one == other)


@given(names, names, names, names)
def test_two_resources_never_share_data(one: str, name: str, other: str, other_name: str) -> None:
    assert (redis_key(one, name) == redis_key(other, other_name)) == ((one, name) == (other, other_name))


def test_a_plain_name_stays_readable() -> None:
    assert redis_key("cart/7", "items") == "{cart/7}:items"
    assert mark_key("invoice/42") == "fencing:{invoice/42}:mark"
    assert redis_key("a}b", "x") == "{a%7Db}:x"


@pytest.mark.parametrize(
    ("resource", "name", "kind"),
    [("", "x", ValueError), ("a", "", ValueError), ("x" * 513, "x", ValueError), ("\ud800", "x", ValueError),
     (7, "x", TypeError), ("a", b"x", TypeError), ("a", None, TypeError)],
)  # fmt: skip
def test_wrong_names_are_refused(resource: Any, name: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        redis_key(resource, name)


@given(resource=names)
def test_a_mark_tells_its_resource(resource: str) -> None:
    assert resource_of(mark_key(resource)) == resource


@pytest.mark.parametrize(
    "key", ["fencing:{a}:other", "fencing:{}:mark", "x", "fencing:{a}:mark:b", "fencing:{%61}:mark"]
)
def test_a_key_of_something_else_is_no_mark(key: str) -> None:
    assert resource_of(key) is None


@given(tag=names.filter(lambda text: "}" not in text), one=names, other=names)
def test_resources_with_one_hash_tag_share_a_slot(tag: str, one: str, other: str) -> None:
    here, beside = f"{{{tag}}}{one}", f"{{{tag}}}{other}"
    assert key_slot(mark_key(here).encode()) == key_slot(redis_key(beside, "x").encode())
