"""The two drivers of a dialogue: one for ``redis.Redis``, one for ``redis.asyncio.Redis``.

They send on a connection of the client's pool by themselves: the client's own ``execute_command`` repeats a command
whose reply was lost (ten times by default in redis-py 8), and with it one script was applied twice. In a cluster they
follow ``MOVED`` and ``ASK``, before which nothing was done, and send the same request there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import AskError, ReadOnlyError, ResponseError

from adapters.redis._core import Write
from adapters.redis._dialogue import Dialogue
from adapters.redis._errors import LOST
from adapters.redis._places import MAX_REDIRECTIONS, Redirection

T = TypeVar("T")

_NOTHING: Final = object()


def drive_write(pool: Any, write: Write) -> None:
    """Make a write over a connection of a blocking pool.

    The usual one is sent once and answered at once, without a dialogue, which takes as long as all the rest here; what
    comes otherwise, its dialogue takes up from here.
    """
    connection = None
    known: tuple[Any, ...] = ()
    try:
        connection = pool.get_connection()
        protocol = _protocol(connection)
        known = (protocol,)
        connection.send_packed_command((write.begin(protocol),))
        answer = connection.read_response(disable_decoding=True)
    except (*LOST, ResponseError) as exc:
        known = (*known, exc)
    except BaseException:
        write.end()
        if connection is not None:  # an interrupt: whoever used it next would read this answer as its own
            connection.disconnect()
            pool.release(connection)
        raise
    else:
        if write.is_settled_by(answer):
            pool.release(connection)
            return
        known = (protocol, answer)
    drive(pool, write.dialogue(), connection, known)


def drive(pool: Any, dialogue: Dialogue[T], connection: Any = None, known: Sequence[Any] = ()) -> T:
    """Hold the dialogue over a connection of a blocking pool, or of another place (``_places``).

    ``known``: what its first requests, made over ``connection``, were answered with: an answer, or an exception.
    """
    waiting = iter(known)
    in_flight = False
    follows = hasattr(pool, "follow")
    redirected: Redirection | None = None
    redirections = 0
    try:
        request = next(dialogue)
        while True:
            try:
                answer: Any = None
                if redirected is not None:
                    to, redirected = redirected, None
                    connection = pool.follow(to)
                if (said := next(waiting, _NOTHING)) is not _NOTHING:
                    in_flight = request is not None
                    if isinstance(said, BaseException):
                        raise said
                    answer, in_flight = said, False
                elif request is None:
                    if connection is None:
                        connection = pool.get_connection()
                    answer = _protocol(connection)
                elif isinstance(request, bytes):
                    assert connection is not None
                    in_flight = True
                    connection.send_packed_command([request])
                    answer = connection.read_response(disable_decoding=True)
                    in_flight = False
                else:
                    time.sleep(request)
            except ResponseError as exc:
                in_flight = False
                if follows and connection is not None and isinstance(exc, AskError) and redirections < MAX_REDIRECTIONS:
                    redirections += 1
                    redirected, left, connection = exc, connection, None
                    pool.release(left)
                    continue
                if connection is not None and isinstance(exc, ReadOnlyError):
                    connection.disconnect()  # after a failover the same address leads to another server
                request = dialogue.throw(exc)
            except LOST as exc:
                lost, connection, in_flight = connection, None, False
                if lost is not None:
                    lost.disconnect()
                    pool.release(lost)
                if follows:
                    pool.lost()
                request = dialogue.throw(exc)
            else:
                request = dialogue.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        if connection is not None:
            if in_flight:  # an interrupt: whoever used the connection next would read this answer as its own
                connection.disconnect()
            pool.release(connection)


async def drive_async(pool: Any, dialogue: Dialogue[T]) -> T:
    """Hold the dialogue over a connection of an asyncio pool, or of another place (``_places``)."""
    connection = None
    in_flight = False
    follows = hasattr(pool, "follow")
    redirected: Redirection | None = None
    redirections = 0
    try:
        request = next(dialogue)
        while True:
            try:
                answer: Any = None
                if redirected is not None:
                    said, redirected = redirected, None
                    connection = await pool.follow(said)
                if request is None:
                    if connection is None:
                        connection = await pool.get_connection()
                    answer = _protocol(connection)
                elif isinstance(request, bytes):
                    assert connection is not None
                    in_flight = True
                    await connection.send_packed_command([request])
                    answer = await connection.read_response(disable_decoding=True)
                    in_flight = False
                else:
                    await asyncio.sleep(request)
            except ResponseError as exc:
                in_flight = False
                if follows and connection is not None and isinstance(exc, AskError) and redirections < MAX_REDIRECTIONS:
                    redirections += 1
                    redirected, left, connection = exc, connection, None
                    await pool.release(left)
                    continue
                if connection is not None and isinstance(exc, ReadOnlyError):
                    await connection.disconnect()  # after a failover the same address leads to another server
                request = dialogue.throw(exc)
            except LOST as exc:
                lost, connection, in_flight = connection, None, False
                if lost is not None:
                    await lost.disconnect()
                    await pool.release(lost)
                if follows:
                    pool.lost()
                request = dialogue.throw(exc)
            else:
                request = dialogue.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        if connection is not None:
            if in_flight:  # a cancellation: whoever used the connection next would read this answer as its own
                await connection.disconnect()
            await pool.release(connection)


def _protocol(connection: Any) -> int:
    # The proxy of client-side caching has no such attribute; it exists in RESP3 only.
    return int(getattr(connection, "protocol", 3))
