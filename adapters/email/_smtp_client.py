"""The stdlib's SMTP client with a short way to an answer: a system call each for a command and its reply.

A timeout of Python's own makes two of each, and with every one a thread lets go of the interpreter and asks for it
again; with several connections that costs more than the conversation. So the kernel keeps the time, where it can.
"""

from __future__ import annotations

import os
import smtplib
import socket
import ssl
import struct
from typing import Any

_MAXLINE = 8192
"""As smtplib: far above RFC 5321 §4.5.3.1.5 (512), and an end to a server that never ends its line."""


class _Short:
    """For a class of smtplib: reads replies from the socket itself."""

    sock: Any
    _held = b""
    _held_from: Any = None

    def getreply(self) -> tuple[int, bytes]:
        """The code, -1 if there is none, and the text; several lines become one text with line feeds.

        Raises ``smtplib.SMTPServerDisconnected``, and ``smtplib.SMTPResponseException`` for a line without an end;
        the connection is closed then.
        """
        # What was read before TLS began must not be taken for something that came through it.
        held, self._held = self._held if self._held_from is self.sock else b"", b""
        told: list[bytes] = []
        while True:
            line, found, rest = held.partition(b"\n")
            if not found:
                held += self._more(len(held))
                continue
            told.append(line[4:].strip())
            held = rest
            try:
                code = int(line[:3])
            except ValueError:
                code = -1
            if code == -1 or line[3:4] != b"-":
                if held:
                    self._held, self._held_from = held, self.sock
                return code, b"\n".join(told)

    def _more(self, held: int) -> bytes:
        if held > _MAXLINE:
            self.close()
            raise smtplib.SMTPResponseException(500, "the server's line has no end")
        try:
            more: bytes = self.sock.recv(4096)
        except BlockingIOError as exc:  # the kernel's clock, see limit()
            self.close()
            raise smtplib.SMTPServerDisconnected("Connection unexpectedly closed: timed out") from exc
        except OSError as exc:
            self.close()
            raise smtplib.SMTPServerDisconnected(f"Connection unexpectedly closed: {exc}") from exc
        if not more:
            self.close()
            raise smtplib.SMTPServerDisconnected("Connection unexpectedly closed")
        return more

    def close(self) -> None:
        super().close()  # type: ignore[misc]


class Client(_Short, smtplib.SMTP):
    """``smtplib.SMTP``."""


class TlsClient(_Short, smtplib.SMTP_SSL):
    """``smtplib.SMTP_SSL``."""


def limit(sock: socket.socket, write: float, read: float) -> None:
    """From now on a write may take ``write`` seconds until something of it is taken, a read ``read`` seconds."""
    if isinstance(sock, ssl.SSLSocket) or os.name != "posix":
        sock.settimeout(read)  # OpenSSL waits by itself, for Python's timeout alone
        return
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(write))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(read))


def limit_read(sock: socket.socket, seconds: float) -> None:
    """After :func:`limit`: from now on a read may take so many seconds."""
    if isinstance(sock, ssl.SSLSocket) or os.name != "posix":
        sock.settimeout(seconds)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))  # 0 would be: for ever
