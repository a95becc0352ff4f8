"""What is known of Redis commands: which a fenced write refuses, where their keys are, how replies travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from adapters.redis._wire import word

Words = Sequence[bytes]
"""A command as it is sent, name first, every word encoded."""

MAX_WORDS = 7900
"""The most words of one command: Lua's ``unpack`` gives up at about 8,000."""


def _named(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


_REFUSED = {
    **_named(
        "it waits, and nothing may wait inside the script that checks the token",
        "BLPOP BRPOP BRPOPLPUSH BLMOVE BLMPOP BZPOPMIN BZPOPMAX BZMPOP WAIT WAITAOF",
    ),
    **_named(
        "it changes the connection, not the data",
        "AUTH HELLO SELECT QUIT RESET CLIENT ASKING READONLY READWRITE MONITOR HIMPORT "
        "SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE",
    ),
    **_named("the whole block is one transaction already", "MULTI EXEC DISCARD WATCH UNWATCH"),
    **_named(
        "a script cannot call one that the server keeps; record EVAL with its text",
        "EVALSHA EVAL_RO EVALSHA_RO FCALL FCALL_RO FUNCTION SCRIPT",
    ),
    **_named("it would take the marks with it, and a delete must keep them", "FLUSHALL FLUSHDB SWAPDB"),
    **_named(
        "it administers the server, it does not write data",
        "ACL BGREWRITEAOF BGSAVE CLUSTER COMMAND CONFIG DEBUG FAILOVER LATENCY MIGRATE MODULE PSYNC REPLCONF REPLICAOF "
        "SAVE SENTINEL SHUTDOWN SLAVEOF SLOWLOG SYNC",
    ),
    **_named(
        "its reply cannot be carried through a script unharmed; read it outside the block",
        "ZMSCORE GEOPOS XINFO MEMORY",
    ),
}

# Commands whose reply in RESP3 is not the one in RESP2 (doubles, maps, nested pairs) and holds no null inside a
# list, where a script in RESP3 would cut it off. All others are called in RESP2, in which they answer the same over
# both protocols.
_RESHAPED = frozenset(
    _named(
        "",
        "ZADD ZINCRBY ZSCORE ZPOPMIN ZPOPMAX ZMPOP ZRANGE ZRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZRANK ZREVRANK "
        "ZDIFF ZINTER ZUNION ZRANDMEMBER HRANDFIELD HGETALL XREAD XREADGROUP LCS GEOSEARCH GEORADIUS GEORADIUSBYMEMBER",
    )
)


def _first(words: Words) -> Words:
    return words[1:2]


def _first_two(words: Words) -> Words:
    return words[1:3]


def _all(words: Words) -> Words:
    return words[1:]


def _pairs(words: Words) -> Words:
    return words[1::2]


def _second(words: Words) -> Words:
    return words[2:3]


def _from_second(words: Words) -> Words:
    return words[2:]


def _none(words: Words) -> Words:
    return ()


def _scripted(words: Words) -> Words:
    """``EVAL script numkeys key [key ...] ...``."""
    if words[1].startswith(b"#!"):
        raise ValueError("a script under the fence has no line with #!: its flags are those of the script around it")
    count = int(words[2])
    if count < 0 or count > len(words) - 3:
        raise ValueError(f"EVAL names {count} keys and has {len(words) - 3} arguments")
    return words[3 : 3 + count]


def _counted(words: Words) -> Words:
    """``NAME numkeys key [key ...] ...``."""
    return words[2 : 2 + int(words[1])]


def _stored_counted(words: Words) -> Words:
    """``NAME destination numkeys key [key ...] ...``."""
    return (words[1], *words[3 : 3 + int(words[2])])


def _counted_pairs(words: Words) -> Words:
    """``NAME numkeys key value [key value ...] ...``."""
    return words[2 : 2 + 2 * int(words[1]) : 2]


def _first_and_stored(words: Words) -> Words:
    """``NAME key ... [STORE|STOREDIST destination]``."""
    stored = [words[i + 1] for i, item in enumerate(words[:-1]) if item.upper() in (b"STORE", b"STOREDIST")]
    return (*words[1:2], *stored)


def _streams(words: Words) -> Words:
    """``NAME ... STREAMS key [key ...] id [id ...]``."""
    rest = words[[item.upper() for item in words].index(b"STREAMS") + 1 :]
    return rest[: len(rest) // 2]


def _found_by(find: Callable[[Words], Words], names: str) -> dict[str, Callable[[Words], Words]]:
    return dict.fromkeys(names.split(), find)


# Redis command reference, "Key specifications". A command that is not here has one key, its first argument: so have
# nearly all, those of modules too.
_KEYS = {
    **_found_by(_all, "DEL UNLINK EXISTS TOUCH MGET PFCOUNT PFMERGE"),
    **_found_by(_all, "SDIFF SINTER SUNION SDIFFSTORE SINTERSTORE SUNIONSTORE"),
    **_found_by(_pairs, "MSET MSETNX"),
    **_found_by(_first_two, "RENAME RENAMENX COPY SMOVE LMOVE RPOPLPUSH ZRANGESTORE GEOSEARCHSTORE LCS"),
    **_found_by(_second, "XGROUP OBJECT"),
    **_found_by(_from_second, "BITOP"),
    **_found_by(_stored_counted, "ZUNIONSTORE ZINTERSTORE ZDIFFSTORE"),
    **_found_by(_counted, "ZUNION ZINTER ZDIFF LMPOP ZMPOP SINTERCARD ZINTERCARD"),
    **_found_by(_counted_pairs, "MSETEX"),
    **_found_by(_scripted, "EVAL"),
    **_found_by(_first_and_stored, "SORT SORT_RO GEORADIUS GEORADIUSBYMEMBER"),
    **_found_by(_streams, "XREAD XREADGROUP"),
    **_found_by(_none, "PING ECHO TIME PUBLISH SPUBLISH PUBSUB INFO DBSIZE KEYS SCAN RANDOMKEY LASTSAVE ROLE LOLWUT"),
}


@dataclass(frozen=True, slots=True)
class Command:
    """What a command's name tells: its words, where its keys are, whether its reply has another shape in RESP3."""

    words: tuple[bytes, ...]
    packed: bytes
    """The words as they go over the wire."""
    find_keys: Callable[[Words], Words]
    reshaped: bool
    may_block: bool
    is_plain: bool
    """One word, and the next one is the key: then there is no more to :meth:`check` than how many words it has."""

    def check(self, name: str, words: Words) -> Words:
        """Return the keys of the whole command. Raises ``ValueError`` for one that the script cannot execute."""
        if len(words) > MAX_WORDS:
            raise ValueError(f"{name} has {len(words)} words; a script passes on at most {MAX_WORDS}: split it")
        try:
            keys = self.find_keys(words)
        except (ValueError, IndexError) as exc:
            raise ValueError(f"{name}: its arguments do not tell its keys ({exc}): {list(words[1:])!r}") from exc
        if self.may_block and b"BLOCK" in (item.upper() for item in words[: words.index(keys[0])]):
            raise ValueError(f"{name} with BLOCK has no place in a fenced write: nothing may wait inside the script")
        return keys


@lru_cache(maxsize=1024)
def command(name: str) -> Command:
    """Look up a command by its name, subcommand included (``"XGROUP CREATE"``).

    Raises ``ValueError`` for one that has no place in a fenced write; the message says why.
    """
    words = name.upper().split()
    if not words:
        raise ValueError("a command without a name")
    first = words[0]
    if first in _REFUSED:
        raise ValueError(f"{name} has no place in a fenced write: {_REFUSED[first]}")
    return Command(
        words=tuple(one.encode() for one in words),
        packed=b"".join(word(one.encode()) for one in words),
        find_keys=_KEYS.get(first, _first),
        reshaped=first in _RESHAPED,
        may_block=first in ("XREAD", "XREADGROUP"),
        is_plain=len(words) == 1 and first not in _KEYS,
    )
