"""A call of the script as bytes: what is kept of one call is never taken for another one."""

from __future__ import annotations

from typing import Any

from redis.connection import Encoder

from adapters.redis import Recorder
from adapters.redis._recorder import Tape
from adapters.redis._script import Frames, call
from adapters.redis._writers import Writer
from fencing import Token


def words_of(sent: bytes) -> list[str]:
    """The words of one command."""
    lines = sent.decode().split("\r\n")
    words = lines[2::2]
    assert len(words) == int(lines[0][1:])
    return words


def recorded(*values: int) -> Tape:
    tape = Tape(Encoder("utf-8", "strict", False), {})
    for value in values:
        Recorder(tape).set("k", value)
    return tape


def test_kept_frames_are_told_apart_by_all_that_is_in_them() -> None:
    tape, token = recorded(1), Token(5, "shop", "line-a")
    usual: dict[str, Any] = {
        "resources": ("a",), "token": token, "holder": "h", "on_missing": "reject", "protocol": 3, "known": 0,
        "tape": tape,
    }  # fmt: skip
    others: list[dict[str, Any]] = [
        {},
        {"resources": ("b",)},
        {"resources": ("a", "b")},
        {"token": Token(6, "shop", "line-a")},
        {"token": Token(5, "shop", "line-b")},
        {"holder": "another"},
        {"on_missing": "create"},
        {"protocol": 2},
        {"known": 1},
        {"known": "0/250"},
        {"tape": recorded(1, 2)},
        {"tape": None},
    ]
    frames = Frames()
    writer = Writer()

    def sent(kept: Frames, one: dict[str, Any]) -> bytes:
        options = {**usual, **one}
        return call(kept.of(**options), writer, options["tape"])

    fresh = [sent(Frames(), one) for one in others]
    assert [sent(frames, one) for one in others] == fresh
    assert [sent(frames, one) for one in reversed(others)] == fresh[::-1]
    assert len(set(fresh)) == len(others)


def test_the_words_of_a_call() -> None:
    tape, writer = recorded(7), Writer()
    frames = Frames()
    for _ in range(2):
        frame = frames.of(("a",), Token(5, "shop", "line-a"), "host:1", "reject", 3, 0, tape)
        words = words_of(call(frame, writer, tape))
        assert words[0] == "EVALSHA"
        assert words[2:6] == ["2", "fencing:{a}:mark", "k", "shop/line-a/5"]
        assert words[6].startswith("writer:") and words[7].startswith("0000000000000001:")
        assert words[8:] == ["1", "host:1", "reject 3 0", "3", "SET", "k", "7"]
    adopting = frames.of(("a",), Token(5, "shop", "line-a"), "host:1", "adopt", 3, 0, None)
    assert words_of(call(adopting, None, None, "ops: moved"))[5:7] == ["writer:", "ops: moved"]


def test_more_holders_than_are_kept_are_each_sent_as_they_are() -> None:
    frames, tape, writer = Frames(), recorded(1), Writer()
    tokens = [Token(value, "shop", "line-a") for value in range(1, 600)]
    for token in (*tokens, *tokens):
        words = words_of(call(frames.of(("a",), token, "h", "reject", 3, 0, tape), writer, tape))
        assert words[5] == str(token)


def test_a_command_of_two_words_without_arguments_is_recorded() -> None:
    tape = Tape(Encoder("utf-8", "strict", False), {})
    Recorder(tape).execute_command("MODULEX LIST")
    assert tape.words == [b"$1\r\n2\r\n", b"$7\r\nMODULEX\r\n$4\r\nLIST\r\n"]
    assert tape.keys == [b"$4\r\nLIST\r\n"]


def test_a_plain_set_is_recorded_as_the_clients_own_method_does() -> None:
    def tapes(*args: Any, **options: Any) -> tuple[Any, Any]:
        ours, theirs = recorded(), recorded()
        Recorder(ours).set(*args, **options)
        super(Recorder, Recorder(theirs)).set(*args, **options)
        return ours, theirs

    for args, options in ((("k", 1), {}), (("k", "v"), {}), (("k", "v", 10), {}), (("k", b"v"), {"nx": True})):
        ours, theirs = tapes(*args, **options)
        assert (ours.words, ours.keys, ours.size, ours._calls) == (
            theirs.words,
            theirs.keys,
            theirs.size,
            theirs._calls,
        )
    named = recorded()
    Recorder(named).set(name="k", value=1)
    assert named.words == recorded(1).words
