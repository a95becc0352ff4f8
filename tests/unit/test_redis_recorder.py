"""The recorder: what it takes, what it refuses at the line that says it, and where the keys of a command are."""

from __future__ import annotations

from typing import Any

import pytest
from redis.connection import Encoder

from adapters.redis import Recorder
from adapters.redis._commands import MAX_WORDS, command
from adapters.redis._recorder import Tape
from adapters.redis._wire import packed, word


@pytest.fixture
def tape() -> Tape:
    return Tape(Encoder("utf-8", "strict", False), {})


@pytest.fixture
def recorder(tape: Tape) -> Recorder:
    return Recorder(tape)


REFUSED = [
    ("BLPOP", "k", 0), ("brpop", "k", 0), ("BLMOVE", "a", "b", "LEFT", "LEFT", 0), ("BZPOPMIN", "k", 0), ("WAIT", 1, 1),
    ("SELECT", 1), ("AUTH", "x"), ("HELLO", 3), ("CLIENT", "KILL"), ("CLIENT KILL", "x"), ("RESET",), ("MONITOR",),
    ("MULTI",), ("EXEC",), ("WATCH", "k"), ("DISCARD",), ("SUBSCRIBE", "c"), ("PSUBSCRIBE", "c"),
    ("SCRIPT LOAD", "return 1"), ("EVALSHA", "x", 0), ("EVAL_RO", "x", 0), ("FCALL", "f", 0), ("FUNCTION LIST",),
    ("FLUSHALL",), ("FLUSHDB",), ("SWAPDB", 0, 1), ("SHUTDOWN",), ("CONFIG SET", "a", "b"), ("DEBUG", "x"),
    ("REPLICAOF", "NO", "ONE"), ("ACL", "SETUSER", "x"), ("MIGRATE", "x"), ("  ",),
]  # fmt: skip


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: words[0])
def test_a_command_that_has_no_place_in_a_fenced_write_is_refused_by_name(
    recorder: Recorder, tape: Tape, words: tuple[Any, ...]
) -> None:
    with pytest.raises(ValueError, match=words[0].strip() or "without a name"):
        recorder.execute_command(*words)
    assert len(tape) == 0


def test_the_methods_of_the_client_are_refused_as_their_commands_are(recorder: Recorder) -> None:
    for call in (
        lambda: recorder.blpop(["k"], 0),
        lambda: recorder.flushdb(),
        lambda: recorder.evalsha("x", 0),
        lambda: recorder.script_load("return 1"),
        lambda: recorder.config_set("a", "b"),
        lambda: recorder.xread({"s": "0"}, block=10),
        lambda: recorder.xreadgroup("g", "c", {"s": ">"}, block=10),
    ):
        with pytest.raises(ValueError, match="no place in a fenced write"):
            call()


def test_a_stream_or_group_named_block_does_not_block(recorder: Recorder, tape: Tape) -> None:
    recorder.xread({"BLOCK": "0"})
    assert tape.keys == [word(b"BLOCK")]


@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, object()])
def test_a_value_that_redis_cannot_take_is_refused_at_its_line(recorder: Recorder, tape: Tape, value: Any) -> None:
    with pytest.raises(TypeError, match="SET: argument 2"):
        recorder.execute_command("SET", "k", value)
    assert len(tape) == 0
    assert tape.words == tape.keys == []


def test_values_are_taken_as_they_are_at_that_moment(recorder: Recorder, tape: Tape) -> None:
    buffer = bytearray(b"before")
    recorder.set(memoryview(buffer), memoryview(buffer))
    buffer[:] = b"after!"
    assert tape.keys == [word(b"before")]
    assert tape.words[2:] == [word(b"before")] * 2


def test_a_name_that_is_no_text_is_refused(recorder: Recorder) -> None:
    for words in ((), (b"SET", "k", 1), (7,)):
        with pytest.raises(TypeError, match="name"):
            recorder.execute_command(*words)


def test_marks_are_written_by_the_guard_alone(recorder: Recorder, tape: Tape) -> None:
    for call in (
        lambda: recorder.delete("x", "fencing:{a}:mark"),
        lambda: recorder.set(b"fencing:{a}:mark", 1),
        lambda: recorder.rename("x", "fencing:{a}:mark"),
        lambda: recorder.copy("fencing:{a}:mark", "x"),
        lambda: recorder.zunionstore("fencing:{a}:mark", ["x"]),
        lambda: recorder.sort("x", store="fencing:{a}:mark"),
    ):
        with pytest.raises(ValueError, match="is a mark"):
            call()
    assert (len(tape), tape.keys, tape.words) == (0, [], [])


def test_more_words_than_a_script_can_pass_on_are_refused(recorder: Recorder) -> None:
    recorder.rpush("k", *range(MAX_WORDS - 2))
    with pytest.raises(ValueError, match="split it"):
        recorder.rpush("k", *range(MAX_WORDS - 1))


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("SET k v", "k"), ("HSET k a b", "k"), ("PING", ""), ("PUBLISH c m", ""), ("JSON.SET k $ 1", "k"),
        ("DEL a b c", "a b c"), ("MSET a 1 b 2", "a b"), ("MSETEX 2 a 1 b 2 EX 5", "a b"), ("RENAME a b", "a b"),
        ("LMOVE a b LEFT LEFT", "a b"), ("SMOVE a b m", "a b"),
        ("COPY a b REPLACE", "a b"), ("BITOP AND d a b", "d a b"),
        ("PFMERGE d a b", "d a b"), ("SINTERSTORE d a b", "d a b"), ("ZUNIONSTORE d 2 a b WEIGHTS 1 2", "d a b"),
        ("ZRANGESTORE d a 0 1", "d a"), ("ZINTER 2 a b WITHSCORES", "a b"), ("LMPOP 2 a b LEFT", "a b"),
        ("ZMPOP 1 a MIN", "a"), ("SORT a STORE d", "a d"), ("SORT a", "a"),
        ("GEORADIUS a 1 1 1 m STORE d", "a d"), ("GEOSEARCHSTORE d a FROMMEMBER m BYRADIUS 1 m", "d a"),
        ("XGROUP CREATE s g 0", "s"), ("OBJECT ENCODING k", "k"), ("XADD s * f v", "s"),
        ("XREADGROUP GROUP g c STREAMS a b > >", "a b"), ("XREAD COUNT 1 STREAMS a 0", "a"), ("LCS a b LEN", "a b"),
    ],
)  # fmt: skip
def test_the_keys_of_a_command(words: str, keys: str) -> None:
    encoded = [item.encode() for item in words.split()]
    assert [*command(words.split()[0]).check("", encoded)] == [key.encode() for key in keys.split()]


def test_arguments_that_do_not_tell_the_keys_are_refused(recorder: Recorder, tape: Tape) -> None:
    for words in (("ZUNION", "two", "a"), ("LMPOP",), ("XREAD", "COUNT", 1)):
        with pytest.raises(ValueError, match="do not tell its keys"):
            recorder.execute_command(*words)
    assert len(tape) == 0


def test_commands_as_bytes() -> None:
    assert packed("WAIT", 1, 1000) == b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n"
    assert packed("SET", "é", -5) == b"*3\r\n$3\r\nSET\r\n$2\r\n\xc3\xa9\r\n$2\r\n-5\r\n"


def test_a_reply_that_is_known_stays_though_the_server_did_not_keep_it(recorder: Recorder, tape: Tape) -> None:
    """The script has answered; then the answer of WAIT was lost, and the script, asked again, knows no reply."""
    reply = recorder.get("k")
    tape.seal()
    tape.settle([b"known"])
    tape.settle(None)
    assert reply.value == b"known"
