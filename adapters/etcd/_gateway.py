"""Calls to etcd's JSON gateway, and what its errors mean. The one place where both are known."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fencing.errors import FencingError

try:
    import httpx
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"adapters.etcd needs {exc.name}: pip install 'fencing-toolkit[etcd]'", name=exc.name
    ) from exc

# gRPC status codes (google.rpc.Code), which the gateway passes on.
_NOT_FOUND: Final = 5
_UNAUTHENTICATED: Final = 16
_STALE_TOKEN_OF_A_USER: Final = "invalid auth token"


class EtcdError(FencingError):
    """etcd cannot be reached, or refuses. Nothing is held; what was asked for and not heard of ends by itself."""


class LeaseNotFoundError(EtcdError):
    """The etcd lease has run out, or was revoked."""


class Gateway:
    """The calls, over the first endpoint that answers. Used by several threads at once."""

    def __init__(
        self,
        endpoints: Sequence[str],
        user: str | None,
        password: str | None,
        timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        self._endpoints = list(endpoints)
        self._user = {"name": user, "password": password} if user is not None else None
        self._credential: str | None = None
        self._client = httpx.Client(timeout=timeout, **options)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def grant(self, ttl: int) -> tuple[str, float]:
        """Make an etcd lease; its id, and the seconds that it really has (etcd has a least)."""
        answer = self._call("/v3/lease/grant", {"TTL": ttl})
        return str(answer["ID"]), float(answer["TTL"])

    def keep_alive(self, lease: str, timeout: float) -> float:
        """Renew it; the seconds that it has from now on. Raises :class:`LeaseNotFoundError`."""
        answer = self._call("/v3/lease/keepalive", {"ID": lease}, timeout)
        seconds = float(answer.get("result", {}).get("TTL", 0))
        if seconds <= 0:
            raise LeaseNotFoundError(f"the etcd lease {lease} has run out")
        return seconds

    def revoke(self, lease: str) -> None:
        """End it, and with it the keys that are attached to it."""
        with contextlib.suppress(LeaseNotFoundError):
            self._call("/v3/lease/revoke", {"ID": lease})

    def txn(self, request: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """A transaction: compare, then one list of operations or the other."""
        return self._call("/v3/kv/txn", request, timeout)

    def wait_for_change(self, key: str, revision: int, seconds: float) -> None:
        """Return when the key has changed at or after the revision, when the time is over, or when nobody can say."""
        request = {"create_request": {"key": key, "start_revision": str(revision)}}
        begun = httpx.Timeout(self._client.timeout.connect, read=seconds)
        for endpoint in self._in_turn():
            try:
                with self._client.stream(
                    "POST", f"{endpoint}/v3/watch", json=request, headers=self._headers(), timeout=begun
                ) as stream:
                    for line in stream.iter_lines():
                        told = json.loads(line).get("result", {})
                        if not told.get("created") or told.get("events") or told.get("canceled"):
                            return
                return
            except httpx.ReadTimeout:
                return
            except (httpx.TransportError, ValueError):
                continue

    def _call(self, path: str, body: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        failure: httpx.TransportError | None = None
        for endpoint in self._in_turn():
            try:
                return self._ask(endpoint, path, body, timeout)
            except httpx.TransportError as exc:
                failure = exc
                self._put_last(endpoint)
        raise EtcdError(
            f"etcd cannot be reached at {', '.join(self._endpoints)} ({type(failure).__name__}: {failure})"
        ) from failure

    def _ask(self, endpoint: str, path: str, body: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        for fresh in (False, True):
            if self._user is not None and (self._credential is None or fresh):
                self._credential = None  # etcd 3.4 refuses to look at a password beside a token that it forgot
                self._credential = self._post(endpoint, "/v3/auth/authenticate", self._user, timeout)["token"]
            try:
                return self._post(endpoint, path, body, timeout)
            except _CredentialExpiredError:
                if self._user is None or fresh:
                    raise
        raise AssertionError("not reached")

    def _post(self, endpoint: str, path: str, body: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        kept = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        response = self._client.post(f"{endpoint}{path}", json=body, headers=self._headers(), timeout=kept)
        try:
            answer = response.json()
        except ValueError as exc:
            raise EtcdError(
                f"{endpoint}{path} answered {response.status_code} and no JSON: is it etcd's client port?"
            ) from exc
        said = answer.get("error") if isinstance(answer, dict) else None
        if response.status_code < 400 and not said and isinstance(answer, dict):
            return answer
        raise _meaning(endpoint, path, response.status_code, answer)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._credential} if self._credential else {}

    def _in_turn(self) -> list[str]:
        with self._lock:
            return list(self._endpoints)

    def _put_last(self, endpoint: str) -> None:
        with self._lock:
            self._endpoints.remove(endpoint)
            self._endpoints.append(endpoint)


class _CredentialExpiredError(EtcdError):
    pass


def _meaning(endpoint: str, path: str, status: int, answer: Any) -> EtcdError:
    facts = answer if isinstance(answer, dict) else {}
    error = facts.get("error")
    # In a stream the error is a structure of its own.
    inner = error if isinstance(error, dict) else facts
    text = str(inner.get("message") or error or answer)
    code = inner.get("code", inner.get("grpc_code"))
    message = f"etcd at {endpoint} answered {path} with {status}: {text}"
    if "lease not found" in text or (code == _NOT_FOUND and "lease" in path):
        return LeaseNotFoundError(message)
    if code == _UNAUTHENTICATED or _STALE_TOKEN_OF_A_USER in text:
        return _CredentialExpiredError(message)
    return EtcdError(message)


def encoded(text: str) -> str:
    """Bytes as the gateway takes them."""
    return base64.b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    """Bytes as the gateway gives them."""
    return base64.b64decode(text).decode("utf-8", "replace")
