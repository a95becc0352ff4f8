"""The handle of a fenced write to Redis: it records commands, and its replies have values once the block has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.commands.core import CoreCommands
from redis.exceptions import DataError

from adapters.redis._commands import MAX_WORDS, command
from adapters.redis._keys import MARK_PREFIX
from adapters.redis._places import slot_of
from adapters.redis._wire import number
from fencing.errors import EffectError, FencingError, OutcomeUnknownError

T = TypeVar("T")

# A double holds every whole number up to here; Lua, which carries the replies, has no other numbers.
_EXACT = 2**53


class Tape:
    """The commands of one fenced write, and afterwards what became of them.

    ``words`` are the commands as the script takes them and ``keys`` their keys, both as they go over the wire;
    ``size`` is the number of words.
    """

    __slots__ = (
        "_callbacks",
        "_calls",
        "_encoder",
        "_end",
        "_not_kept",
        "_replies",
        "_sealed",
        "_slot",
        "_values",
        "keys",
        "size",
        "words",
    )

    def __init__(
        self, encoder: Any, callbacks: Mapping[str, Callable[..., Any]], slot: tuple[int, str] | None = None
    ) -> None:
        """``slot``: in a cluster, the one in which every key must lie, and the resource that lies there."""
        self._slot = slot
        self._encoder = encoder
        self._callbacks = callbacks
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[bytes] = []
        self.words: list[bytes] = []
        self.size = 0
        self._sealed = False
        self._replies: Sequence[Any] | None = None
        self._end: BaseException | None = None
        self._not_kept: OutcomeUnknownError | None = None
        self._values: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def record(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Reply[Any]:
        """Add a command, checked and encoded here so that the error comes from the line that made it."""
        if self._sealed:
            raise FencingError(f"{name} came after the block of its fenced write had ended, and was not executed")
        known = command(name)
        encoder = self._encoder
        words = [*known.words]
        sent = [known.packed]
        try:
            for argument in args:
                # Whole numbers and text as the encoder does it, which takes its time.
                kind = type(argument)
                if kind is str:
                    encoded = argument.encode(encoder.encoding, encoder.encoding_errors)
                elif kind is int:
                    encoded = b"%d" % argument
                else:
                    encoded = encoder.encode(argument)
                    if type(encoded) is not bytes:
                        encoded = bytes(encoded)
                words.append(encoded)
                sent.append(b"$%d\r\n%b\r\n" % (len(encoded), encoded))
        except DataError as exc:
            raise TypeError(
                f"{name}: argument {len(words) - len(known.words) + 1} is {argument!r}, of type "
                f"{type(argument).__name__}; pass bytes, str, int or float"
            ) from exc
        count = len(words)
        keys = words[1:2] if known.is_plain and 1 < count <= MAX_WORDS else known.check(name, words)
        for key in keys:
            if key.startswith(MARK_PREFIX):
                raise ValueError(f"{name}: the key {key!r} is a mark, which only the guard writes")
            if self._slot is not None and slot_of(key) != self._slot[0]:
                raise ValueError(
                    f"{name}: the key {key!r} lies in slot {slot_of(key)} of the cluster and the mark of "
                    f"{self._slot[1]!r} in slot {self._slot[0]}, where no single step reaches both: "
                    f"name it with redis_key({self._slot[1]!r}, ...)"
                )
        if len(keys) == 1 and len(sent) > 1 and keys[0] is words[len(known.words)]:  # nearly always
            self.keys.append(sent[1])
        else:
            self.keys += [b"$%d\r\n%b\r\n" % (len(key), key) for key in keys]
        self.words.append(number(-count if known.reshaped else count))
        self.words += sent
        self.size += 1 + count
        self._calls.append((name, options))
        return Reply(self, len(self._calls) - 1)

    def name_of(self, index: int) -> str:
        """The name of a recorded command."""
        return self._calls[index][0]

    @property
    def error(self) -> EffectError | None:
        """The failure of the command at which the execution stopped."""
        return self._end if isinstance(self._end, EffectError) else None

    def seal(self) -> None:
        """The block has ended: nothing more is recorded."""
        self._sealed = True

    def settle(self, replies: Sequence[Any] | None, error: EffectError | None = None) -> None:
        """The commands were executed, up to the one that failed with ``error``. No replies: they were not kept.

        Asked again (the answer of ``WAIT`` was lost), it may be that they are not kept and are known all the same.
        """
        self._end = error
        if replies is None and self._replies is None:
            self._not_kept = OutcomeUnknownError(
                "it was executed once; its reply was lost, and too large for the server to keep: read the data"
            )
        elif replies is not None:
            self._replies = replies

    def abandon(self, error: BaseException) -> None:
        """The write ended with ``error``: refused, unknown, or never sent."""
        self._sealed = True
        if self.error is None:
            self._end = error

    def value_of(self, index: int) -> Any:
        """The value of a reply, as the plain client would have returned it."""
        if index not in self._values:
            self._values[index] = self._parse(index, self._reply_of(index))
        return self._values[index]

    def _reply_of(self, index: int) -> Any:
        name, end = self._calls[index][0], self._end
        if isinstance(end, EffectError) and index >= end.index:
            if index == end.index:
                raise end
            raise FencingError(f"{name} was not executed: command {end.index} before it failed ({end})") from end
        if end is not None and not isinstance(end, EffectError):
            kind = OutcomeUnknownError if isinstance(end, OutcomeUnknownError) else FencingError
            raise kind(f"{name} has no reply: {type(end).__name__}: {end}") from end
        if self._not_kept is not None:
            raise OutcomeUnknownError(f"{name} has no reply: {self._not_kept}") from self._not_kept
        if self._replies is None:
            raise FencingError(f"{name} has not been executed: its reply has a value once the block has ended")
        return self._replies[index]

    def _parse(self, index: int, raw: Any) -> Any:
        name, options = self._calls[index]
        options = dict(options)
        if _is_rounded(raw):
            raise FencingError(
                f"{name} was executed, but its reply is beyond 2**53, where a script's numbers are rounded: read it"
            )
        if NEVER_DECODE in options:
            del options[NEVER_DECODE]
        elif self._encoder.decode_responses:
            raw = _decoded(raw, self._encoder.decode)
        options.pop(EMPTY_RESPONSE, None)
        options.pop("keys", None)  # meant for the client's cache
        return self._callbacks[name](raw, **options) if name in self._callbacks else raw


def _is_rounded(raw: Any) -> bool:
    if isinstance(raw, list):
        return any(_is_rounded(item) for item in raw)
    return isinstance(raw, int) and not -_EXACT < raw < _EXACT


def _decoded(raw: Any, decode: Callable[[Any], Any]) -> Any:
    if isinstance(raw, list):
        return [_decoded(item, decode) for item in raw]
    if isinstance(raw, dict):
        return {_decoded(key, decode): _decoded(item, decode) for key, item in raw.items()}
    return decode(raw)


class Reply(Generic[T]):
    """What a recorded command will have answered."""

    __slots__ = ("_index", "_tape")

    def __init__(self, tape: Tape, index: int) -> None:
        self._tape = tape
        self._index = index

    @property
    def value(self) -> T:
        """The reply, as the plain client would have returned it.

        Raises :class:`~fencing.errors.FencingError` before the block has ended and where the command was not executed,
        :class:`~fencing.errors.EffectError` if it failed, :class:`~fencing.errors.OutcomeUnknownError` if the reply was
        lost.
        """
        found: T = self._tape.value_of(self._index)
        return found

    def _misused(self) -> NoReturn:
        raise TypeError(
            "a recorded command has no value inside the block: keep the reply and ask its .value afterwards"
        )

    def __bool__(self) -> bool:
        self._misused()

    def __iter__(self) -> Iterator[Any]:
        self._misused()


if TYPE_CHECKING:

    class _Commands:
        """Every command method of the client, each recording and returning a :class:`Reply`."""

        def __getattr__(self, name: str) -> Callable[..., Reply[Any]]: ...

else:
    # Not so for the type checker: there these methods return what the server answers.
    _Commands = CoreCommands


class Recorder(_Commands):
    """Records commands to be executed, all in one step, when the block ends.

    It has the command methods of ``redis.Redis`` (``set``, ``hset``, ``zadd``, …), never awaited, each returning a
    :class:`Reply`; :meth:`execute_command` records any other.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    if not TYPE_CHECKING:

        def set(self, name: Any, value: Any, *more: Any, **options: Any) -> Reply[Any]:
            """As the client's, whose check of its options takes longer than the rest where there are none."""
            if more or options:
                return super().set(name, value, *more, **options)
            return self._tape.record("SET", (name, value), options)

    def execute_command(self, *args: Any, **options: Any) -> Reply[Any]:
        """Record a command: its name (``"SET"``, ``"XGROUP CREATE"``) and its arguments.

        Raises ``ValueError`` for a command that has no place in a fenced write and ``TypeError`` for an argument
        that Redis cannot take; nothing of the block is then sent unless the caller catches it.
        """
        if not args or not isinstance(args[0], str):
            raise TypeError(f"execute_command takes a command's name as text, then its arguments, not {args[:1]!r}")
        return self._tape.record(args[0], args[1:], options)
