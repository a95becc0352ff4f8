"""The network between the processes and the servers: a TCP proxy of our own that cuts, delays, stands still and loses.

Every process has a link of its own to each server, so that a fault can hit one of them alone. All links live on one
event loop, on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

CHUNK = 1 << 16


class Network:
    """The event loop of the links. To be used as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="torture-network", daemon=True)
        self._links: list[Link] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self._links:
            self.call(link._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def link(self, port: int) -> Link:
        """A new link that leads to ``port`` of this machine."""
        link = Link(self, port)
        asyncio.run_coroutine_threadsafe(link._listen(), self._loop).result()
        self._links.append(link)
        return link

    def call(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the loop and wait for its end."""
        done = threading.Event()

        def run() -> None:
            try:
                function()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)


class _Connection:
    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.ends = (client, server)
        self.reply_is_lost = False

    def cut(self) -> None:
        for end in self.ends:
            with contextlib.suppress(Exception):
                end.transport.abort()


class Link:
    """A port of this machine that leads to a server, and misbehaves when told to."""

    def __init__(self, network: Network, port: int) -> None:
        self._network = network
        self._target = port
        self._delay = 0.0
        self._moving = asyncio.Event()
        self._moving.set()
        self._marker: bytes | None = None
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    def lead_to(self, port: int) -> None:
        """New connections lead to another server; the old ones are cut: an address that moves with a failover."""

        def move() -> None:
            self._target = port
            self._cut()

        self._network.call(move)

    def cut(self) -> None:
        """Cut every connection."""
        self._network.call(self._cut)

    def stand_still(self) -> None:
        """Pass nothing on, in either direction, and close nothing: half-open connections, until :meth:`go_on`."""
        self._network.call(self._moving.clear)

    def go_on(self) -> None:
        """Pass everything on again, without delay."""

        def go() -> None:
            self._delay = 0.0
            self._marker = None
            self._moving.set()

        self._network.call(go)

    def delay(self, seconds: float) -> None:
        """Pass everything on later, until :meth:`go_on`."""

        def slow() -> None:
            self._delay = seconds

        self._network.call(slow)

    def lose_reply(self, marker: bytes) -> None:
        """Pass on the next request that contains ``marker``, and cut the connection in place of the answer."""

        def lose() -> None:
            self._marker = marker

        self._network.call(lose)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._moving.set()
        self._cut()

    def _cut(self) -> None:
        for connection in list(self._connections):
            connection.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        for end in (writer, server_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(writer, server_writer)
        self._connections.add(connection)
        pumps = [
            asyncio.ensure_future(self._pump(reader, server_writer, connection, upward=True)),
            asyncio.ensure_future(self._pump(server_reader, writer, connection, upward=False)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        connection.cut()
        self._connections.discard(connection)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection, *, upward: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._moving.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                if upward and self._marker is not None and self._marker in data:
                    self._marker = None
                    connection.reply_is_lost = True
                if not upward and connection.reply_is_lost:
                    return
                writer.write(data)
                await writer.drain()
