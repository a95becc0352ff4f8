"""Names of resources that are hard to keep apart."""

from __future__ import annotations

import pytest

from fencing.errors import (
    StaleTokenError,
)
from fencing.testing._contract._example import NEWER, OLDER, marked
from fencing.testing._harness import Harness

ODD_NAMES = (
    " ",
    "a b",
    "' or 1=1 --",
    'say "no"',
    "100%",
    "%s:value",
    "{a}",
    "}{",
    "back\\slash",
    "line\nbreak\tand\rreturn",
    "ä/ö/ü",
    "请求/7",
    "🧾",
    "\ufeffmark",
    "x" * 512,
    "ß" * 256,
)
"""Resource names with which a query, a key or a template could stumble."""

LOOK_ALIKES = (
    ("a", "A"),
    ("a", "a "),
    ("a", " a"),
    ("1", "01"),
    ("{a}", "a"),
    ("%41", "A"),
    ("\u00e9", "e\u0301"),
    ("ss", "ß"),
    ("x" * 511 + "a", "x" * 511 + "b"),
    ("a_", "ab"),
    ("a%", "ab"),
)
"""Pairs of names that are two resources, though a collation, a pattern or a short column could take them for one."""


class Names:
    """Any name is a resource of its own."""

    def test_any_name_is_a_resource(self, harness: Harness) -> None:
        """Quotes, braces, blanks, line breaks and the longest names are names like any other."""
        for name in ODD_NAMES:
            harness.begin(OLDER, name)
            harness.write(NEWER, name, "x")
            marked(harness, name, NEWER)
            with pytest.raises(StaleTokenError) as caught:
                harness.write(OLDER, name, "y")
            assert caught.value.resource == name
            assert harness.look(name) == "x"

    def test_names_that_look_alike_are_two_resources(self, harness: Harness) -> None:
        """The mark of one of them says nothing about the other."""
        for one, other in LOOK_ALIKES:
            harness.restart()
            harness.begin(OLDER, one, other)
            harness.write(NEWER, one, "newer")
            harness.write(OLDER, other, "older")
            marked(harness, one, NEWER)
            marked(harness, other, OLDER)
            assert (harness.look(one), harness.look(other)) == ("newer", "older")
