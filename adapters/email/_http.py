"""`HttpTransport`: providers that take messages as JSON over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from adapters.email._parts import parts_of
from adapters.email._providers import Meaning, Provider
from adapters.email._transport import (
    Answer,
    Delivery,
    Fate,
    Gate,
    LookUp,
    Outgoing,
    TransportUnavailable,
)

if TYPE_CHECKING:
    import httpx

_FATE: dict[Meaning, Fate] = {
    "sent": "sent",
    "repeated": "sent",
    "rejected": "rejected",
    "deferred": "deferred",
    "unavailable": "deferred",
    "uncertain": "uncertain",
    "held": "uncertain",
}


class HttpTransport:
    """An HTTP provider, described by a :class:`Provider` (:func:`resend`, :func:`brevo`, :func:`loops`,
    :func:`generic`, or one of your own).

    ``timeout`` is how long an answer may take, in seconds; a request without an answer is uncertain. Every request
    carries the provider's idempotency key, whatever the policy; the policy ``keyed`` relies on it. Needs the extra
    ``http``.
    """

    def __init__(self, provider: Provider, *, api_key: str = "", timeout: float = 30.0) -> None:
        if timeout <= 0:
            raise ValueError(f"timeout is seconds above 0, not {timeout!r}")
        if "{api_key}" in "".join(provider.headers.values()) and not api_key:
            raise ValueError(f"api_key is empty: {provider.name} wants one")
        place = urlsplit(provider.url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(f"the provider's url is an http or https one, not {provider.url!r}")
        _httpx()  # a missing extra is an error here, not at the first message
        self.name = f"{provider.name}+{place.scheme}://{place.netloc.rpartition('@')[2]}"
        self._provider = provider
        self._timeout = timeout
        if not _fits(api_key):
            raise ValueError("api_key holds what no HTTP header can: was it read from a file, line end and all?")
        self._headers = {name: value.replace("{api_key}", api_key) for name, value in provider.headers.items()}
        for name, value in self._headers.items():
            if not (_fits(name) and _fits(value)):
                raise ValueError(f"headers[{name!r}] of {provider.name} holds what no HTTP header can")
        if provider.look_up is not None:
            self.look_up = self._look_up

    def __repr__(self) -> str:
        return f"<HttpTransport {self.name}>"

    @property
    def key_window(self) -> float | None:
        """For how many seconds after a hand-over another one is a repetition to the provider. The time that a request
        may be under way is taken off: the provider counts from when it got the first one, and compares when it gets
        the last."""
        key = self._provider.key
        return None if key is None else max(0.0, key.window - 2 * self._timeout)

    def session(self) -> HttpSession:
        """A new session, with connections of its own."""
        return HttpSession(self._provider, self._headers, self._timeout, self.name)

    def _look_up(self, mail: Outgoing) -> LookUp:
        reference = self._provider.look_up
        assert reference is not None
        key = self._provider.key.value(mail.key) if self._provider.key else mail.key
        place = urlsplit(self._provider.url)
        url = f"{place.scheme}://{place.netloc}{reference.path.replace('{key}', quote(key, safe=''))}"
        try:
            response = _httpx().get(url, headers=self._headers, timeout=self._timeout)
        except _httpx().HTTPError as exc:
            return LookUp("unknown", f"{type(exc).__name__}: {exc}")
        if response.status_code == 404:
            return LookUp(reference.missing, _told(response))
        if not response.is_success:
            return LookUp("unknown", _told(response))
        return LookUp(reference.read(_json(response)), _told(response))


class HttpSession:
    """Kept connections to one provider."""

    def __init__(self, provider: Provider, headers: Mapping[str, str], timeout: float, name: str) -> None:
        self._provider = provider
        self._headers = headers
        self._timeout = timeout
        self._name = name
        self._client: httpx.Client | None = None

    def close(self) -> None:
        """Close the connections; a later message opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        """Hand a message over; see :class:`~adapters.email._transport.Session`."""
        provider = self._provider
        if provider.one_recipient and len(mail.recipients) > 1:
            why = f"{provider.name} takes one recipient for each message: put one message for each"
            return _for_all(mail, "rejected", why)
        parts = parts_of(mail)
        if not parts.to and len(parts.bcc) > 1:
            # As the only ones in "to" they would see each other.
            why = f"{provider.name} wants an address in To: put a message for each of these recipients, or name one"
            return _for_all(mail, "rejected", why)
        headers = {**self._headers, "Content-Type": "application/json"}
        body = provider.body(parts)
        if provider.key is not None:
            value = provider.key.value(mail.key)
            if provider.key.where == "header":
                headers[provider.key.name] = value
            else:
                _set(body, provider.key.name, value)
        content = json.dumps(body, sort_keys=True, ensure_ascii=False).encode()
        httpx = _httpx()
        if self._client is None:
            self._client = httpx.Client(timeout=self._timeout)
        request = self._client.build_request("POST", provider.url, content=content, headers=headers)
        gate({})
        try:
            response = self._client.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as exc:
            raise TransportUnavailable(f"{self._name} cannot be reached: {exc}") from exc
        except httpx.HTTPError as exc:
            self.close()
            return _for_all(mail, "uncertain", f"the request was sent and no answer came: {type(exc).__name__}: {exc}")
        return self._read(mail, response)

    def _read(self, mail: Outgoing, response: httpx.Response) -> Delivery:
        answer = _json(response)
        code = answer.get(self._provider.code_field) if isinstance(answer, dict) else None
        meaning = self._provider.meaning(response.status_code, code if isinstance(code, str) else "")
        told = _told(response)
        if meaning == "repeated" and not mail.again:
            meaning, told = "held", f"the key was used, says the provider, though no hand-over is in doubt: {told}"
        delivery = _for_all(mail, _FATE[meaning], told)
        return Delivery(
            delivery.answers,
            free=meaning == "unavailable",
            held=meaning == "held",
            retry_after=_seconds(response.headers.get("Retry-After", "")),
        )


def _for_all(mail: Outgoing, fate: Fate, reply: str) -> Delivery:
    return Delivery(dict.fromkeys(mail.recipients, Answer(fate, reply)))


def _set(body: dict[str, Any], path: str, value: str) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[last] = value


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _told(response: httpx.Response) -> str:
    return f"{response.status_code} {' '.join(response.text.split())[:300]}".strip()


def _fits(text: str) -> bool:
    """Whether it can stand in an HTTP header: found out before the gate, or nobody would know what was sent."""
    return text.isascii() and text.isprintable() and text == text.strip()


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as exc:
        raise ImportError(
            "HTTP providers need httpx, which is not installed: pip install 'fencing-toolkit[email,http]'"
        ) from exc
    return httpx
