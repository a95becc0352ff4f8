"""An HTTP provider of e-mail for tests: a real server that compares idempotency keys, and fails as it is told."""

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

Reply = tuple[int, dict[str, Any], dict[str, str]]
Fault = Literal["accept and drop", "drop"] | Reply
"""What happens to one request: taken and not answered, neither, or this answer without effect."""


@dataclass
class MailProvider:
    """``accepted`` are the bodies that were taken, each once for its key within ``window`` seconds of ``clock``.

    ``key_of`` finds the key in headers and body. ``repeated`` is the answer to a key that was used: None repeats the
    first answer.
    """

    key: str = "Idempotency-Key"
    in_body: bool = False
    window: float = 86_400
    repeated: tuple[int, dict[str, Any]] | None = None
    mismatch: tuple[int, dict[str, Any]] = (422, {"name": "mismatch"})
    faults: deque[Fault] = field(default_factory=deque)
    accepted: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    clock: float = 0.0

    def __enter__(self) -> Self:
        self._keys: dict[str, tuple[float, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = provider.answer(body, dict(self.headers))
                if answer is None:
                    self.close_connection = True
                    return
                self.reply(*answer)

            def do_GET(self) -> None:
                provider.paths.append(self.path)
                known = provider.found.get(self.path)
                self.reply(404 if known is None else 200, known or {"message": "unknown"}, {})

            def reply(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/emails"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Reply | None:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            fault = self.faults.popleft() if self.faults else None
            if isinstance(fault, tuple):
                return fault
            if fault == "drop":
                return None
            key = self._key(body, headers)
            known = self._keys.get(key)
            if known is not None and self.clock - known[0] < self.window:
                if self.repeated is not None:
                    return (*self.repeated, {})
                if known[1] != body:
                    return (*self.mismatch, {})
            else:
                self._keys[key] = (self.clock, body)
                self.accepted.append(body)
            return None if fault == "accept and drop" else (200, {"id": key[:8]}, {})

    def _key(self, body: dict[str, Any], headers: dict[str, str]) -> str:
        if not self.in_body:
            return headers.get(self.key) or f"none {len(self.requests)}"  # without a key nothing is compared
        value: Any = body
        for part in self.key.split("."):
            value = value[part]
        return str(value)
