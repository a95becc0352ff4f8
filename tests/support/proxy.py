"""A TCP proxy that loses what it is told to lose, at the moment that matters."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

Loss = Literal["request", "reply", "silence", "delay"]


class Proxy:
    """Stands on a port of its own in front of a server on 127.0.0.1, and passes everything on.

    A *loss* is ordered beforehand and hits the next request that contains some bytes: ``lose_request`` (the server
    never sees it), ``lose_reply`` (the server has answered, the client never hears it), ``silence`` (as
    ``lose_reply``, but the connection stays open, so that the client waits). In the first two cases both
    connections are closed then. A ``delay`` loses nothing. A request must fit in one read.
    """

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._losses: list[tuple[Loss, bytes, Callable[[], object] | None]] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.seen = 0
        """How many requests with the bytes of an ordered loss, or of the last one, have come."""
        self._watched = b""
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Where clients connect."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The same as the address of a Redis database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def lead_to(self, port: int) -> None:
        """From now on, new connections lead to another server: an address that moves with a failover."""
        self._server = ("127.0.0.1", port)

    def lose_request(self, marker: bytes, times: int = 1, then: Callable[[], object] | None = None) -> None:
        """At the next request that contains ``marker`` call ``then`` and close the connections; do not pass it on."""
        self._order("request", marker, times, then)

    def lose_reply(self, marker: bytes, times: int = 1, then: Callable[[], object] | None = None) -> None:
        """Pass on the next request that contains ``marker``, await the answer, call ``then``, close the connections."""
        self._order("reply", marker, times, then)

    def silence(self, marker: bytes, times: int = 1, then: Callable[[], object] | None = None) -> None:
        """As :meth:`lose_reply`, but keep the connections open."""
        self._order("silence", marker, times, then)

    def delay(self, marker: bytes, then: Callable[[], object]) -> None:
        """Pass on the next request that contains ``marker`` after calling ``then``."""
        self._order("delay", marker, 1, then)

    def forget(self) -> None:
        """Lose nothing of what was ordered and has not come."""
        with self._lock:
            self._losses.clear()

    def close(self) -> None:
        """Close every connection and the port."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _order(self, loss: Loss, marker: bytes, times: int, then: Callable[[], object] | None) -> None:
        with self._lock:
            self._watched = marker
            self.seen = 0
            self._losses.extend([(loss, marker, then)] * times)

    def _next_loss(self, request: bytes) -> tuple[Loss | None, Callable[[], object] | None]:
        with self._lock:
            if self._watched and self._watched in request:
                self.seen += 1
            if self._losses and self._losses[0][1] in request:
                loss, _, then = self._losses.pop(0)
                return loss, then
        return None, None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._relay, args=(client, server), daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        losing: Loss | None = None
        then: Callable[[], object] | None = None
        with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                    if not data:
                        raise ConnectionResetError
                    if key.fileobj is client:
                        losing, then = self._next_loss(data)
                        if losing == "request":
                            if then is not None:
                                then()
                            raise ConnectionResetError
                        if losing == "delay" and then is not None:
                            then()
                            losing, then = None, None
                        server.sendall(data)
                    elif losing is None:
                        client.sendall(data)
                    else:
                        if then is not None:
                            then()
                        if losing == "reply":
                            raise ConnectionResetError
                        then = None
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()
