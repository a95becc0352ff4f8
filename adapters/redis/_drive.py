"""The two drivers of a dialogue: one for ``redis.Redis``, one for ``redis.asyncio.Redis``.

They send on a connection of the client's pool by themselves: the client's own ``execute_command`` repeats a command
whose reply was lost (ten times by default in redis-py 8), and with it one script was applied twice.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from redis.exceptions import ReadOnlyError, ResponseError

from adapters.redis._dialogue import Dialogue
from adapters.redis._errors import LOST

T = TypeVar("T")


def drive(pool: Any, dialogue: Dialogue[T]) -> T:
    """Hold the dialogue over a connection of a blocking pool."""
    connection = None
    in_flight = False
    try:
        request = next(dialogue)
        while True:
            try:
                answer: Any = None
                if request is None:
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
                if connection is not None and isinstance(exc, ReadOnlyError):
                    connection.disconnect()  # after a failover the same address leads to another server
                request = dialogue.throw(exc)
            except LOST as exc:
                lost, connection, in_flight = connection, None, False
                if lost is not None:
                    lost.disconnect()
                    pool.release(lost)
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
    """Hold the dialogue over a connection of an asyncio pool."""
    connection = None
    in_flight = False
    try:
        request = next(dialogue)
        while True:
            try:
                answer: Any = None
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
                if connection is not None and isinstance(exc, ReadOnlyError):
                    await connection.disconnect()  # after a failover the same address leads to another server
                request = dialogue.throw(exc)
            except LOST as exc:
                lost, connection, in_flight = connection, None, False
                if lost is not None:
                    await lost.disconnect()
                    await pool.release(lost)
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
