"""Every kind of request, what is asked of it, and the middlewares at their edges."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from adapters.http import (
    Fence,
    FenceFieldError,
    FenceMiddleware,
    FenceMissingError,
    FenceWsgiMiddleware,
    fence_from,
    fenced,
    fencing_hooks,
    fingerprint,
    problem_of,
)
from fencing import Token, errors

TOKEN = Token(5, "shop", "a")
SHOWN = Fence(("cart/1", "cart/2"), TOKEN, "w", "k")
FIELDS = SHOWN.fields()
RAW = [(name.lower().encode(), value.encode()) for name, value in FIELDS.items()]
ENVIRON = {
    "REQUEST_METHOD": "PUT",
    **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in FIELDS.items()},
}


class Django:
    META = ENVIRON
    headers = FIELDS


class Werkzeug:
    environ = ENVIRON


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "http", "headers": RAW},
        Request({"type": "http", "headers": RAW}),
        ENVIRON,
        Django(),
        Werkzeug(),
        httpx.Request("PUT", "http://x", headers=FIELDS),
    ],
    ids=["ASGI", "Starlette", "WSGI", "Django", "Werkzeug", "headers"],
)
def test_every_kind_of_request(request_: Any) -> None:
    assert fence_from(request_, "cart/2") == SHOWN


def test_when_the_work_began_goes_with_the_token() -> None:
    moment = datetime(2026, 11, 30, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=2)))
    assert all("began" not in field for field in FIELDS.values())
    said = fenced("a", token=TOKEN, key="k", began_at=moment)["fencing"]
    lease = SimpleNamespace(token=TOKEN, holder="w", began_at=moment)
    for fence in (said, fenced("a", token=lease, key="k")["fencing"]):
        lines = [(name.encode(), value.encode()) for name, value in fence.fields().items()]
        assert fence_from({"headers": lines}).began_at == moment
    assert fenced("a", token=lease)["fencing"].began_at is None  # it is of the key
    with pytest.raises(ValueError, match="aware"):
        fenced("a", token=TOKEN, key="k", began_at=datetime(2026, 11, 30))
    error = errors.KeyExpiredError("text", key="k", resource="a", presented=TOKEN)
    problem = problem_of(error)
    assert problem is not None
    assert (problem.status, json.loads(problem.body)["key"]) == (410, "k")


def test_a_holder_is_made_readable() -> None:
    field = '"a";token="shop/a/5";holder=%"w%00%0a%c3%bc' + "x" * 500 + '"'
    assert fence_from({"headers": [(b"fencing-token", field.encode())]}).holder == ("w  ü" + "x" * 500)[:255]


def test_lines_of_one_field_are_one_list() -> None:
    lines = [(b"fencing-token", b'"b";token="shop/a/5"'), (b"Fencing-Token", b'"a";token="shop/a/5"')]
    assert fence_from({"headers": lines}) == Fence(("a", "b"), TOKEN)


@pytest.mark.parametrize(
    "field",
    [
        '"a";token="shop/a/5", "a";token="shop/a/5"', '"a";token="shop/a/5", "b";token="shop/a/6"', '"a"',
        '"a";token="shop/a/05"', '"a";token="shop/a/5";holder=1', '"";token="shop/a/5"', '"a";token=5',
        '"a";token="shop/a/9223372036854775808"',
        '"a";token="shop/a/5";began="yesterday"', '"a";token="shop/a/5";began="2026-11-30T00:00:00"',
        '"a";token="shop/a/5";began="0001-01-01T00:00:00+23:59"',
        '"a";token="shop/a/5";began="9999-12-31T23:00:00-23:00"',
        '"a";token="shop/a/5";began=1', '"a";token="shop/a/5";began="2026-11-30T00:00:00Z", "b";token="shop/a/5"',
        '"a";Token="shop/a/5"', f'"{"x" * 513}";token="shop/a/5"', "%\"%00\";token=\"shop/a/5\"",
    ],
)  # fmt: skip
def test_what_is_no_token(field: str) -> None:
    with pytest.raises(FenceFieldError):
        fence_from({"headers": [(b"fencing-token", field.encode())]})


@pytest.mark.parametrize("keys", [[b'""'], [b"bare"], [b'"a"', b'"b"'], [b'%"%0a"'], [b'"' + b"x" * 256 + b'"']])
def test_what_is_no_key(keys: list[bytes]) -> None:
    with pytest.raises(FenceFieldError):
        fence_from({"headers": [RAW[0], *((b"idempotency-key", key) for key in keys)]})


def test_another_resource_or_issuer_is_refused() -> None:
    request = {"headers": RAW}
    with pytest.raises(FenceFieldError, match="cart/3"):
        fence_from(request, "cart/1", "cart/3")
    with pytest.raises(FenceFieldError, match="not taken here"):
        fence_from(request, issuers={"other"})
    assert fence_from(request, issuers={"other", "shop"}).token == TOKEN
    with pytest.raises(FenceMissingError):
        fence_from({"headers": []})
    with pytest.raises(FenceMissingError, match="Idempotency-Key"):
        fence_from({"headers": RAW[:1]}, need_key=True)
    with pytest.raises(TypeError):
        fence_from(object())


def test_the_client_refuses_what_is_no_resource_token_or_key() -> None:
    for wrong in ({"key": ""}, {"key": "a\nb"}, {"key": "x" * 256}, {"key": "ü" * 128}):
        with pytest.raises(ValueError, match="idempotency key"):
            fenced("a", token=TOKEN, **wrong)
    with pytest.raises(errors.NoLeaseError):
        fenced("a")
    with pytest.raises(ValueError):
        fenced("", token=TOKEN)


def test_a_request_that_says_nothing_is_left_alone() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        facts = {"type": "urn:fencing-toolkit:stale-token"}
        return httpx.Response(412, json=facts, headers={"content-type": "application/problem+json"})

    with httpx.Client(transport=httpx.MockTransport(answer), event_hooks=fencing_hooks()) as client:
        assert client.get("http://x").status_code == 412
    assert "fencing-token" not in seen[0].headers


PROBLEM = "application/problem+json"
STALE = b'{"type": "urn:fencing-toolkit:stale-token"}'


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (412, "text/plain", STALE), (412, PROBLEM, b"no json"), (412, PROBLEM, b"[]"), (412, PROBLEM, b'{"type": 5}'),
        (200, PROBLEM, STALE), (500, PROBLEM, STALE),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_problem_of_ours_is_left_alone(status: int, kind: str, body: bytes) -> None:
    answer = httpx.Response(status, content=body, headers={"content-type": kind})
    with httpx.Client(transport=httpx.MockTransport(lambda _: answer), event_hooks=fencing_hooks()) as client:
        assert client.get("http://x", extensions=fenced("a", token=TOKEN)).status_code == status


def test_facts_that_are_none_are_not_believed() -> None:
    facts = {"type": "urn:fencing-toolkit:stale-token", "mark": "no token", "holder": 5, "resource": ["x"]}
    answer = httpx.Response(412, json=facts, headers={"content-type": "application/problem+json; charset=utf-8"})
    with httpx.Client(transport=httpx.MockTransport(lambda _: answer), event_hooks=fencing_hooks()) as client:
        with pytest.raises(errors.StaleTokenError) as caught:
            client.get("http://x:81/y", extensions=fenced("a", token=TOKEN))
    assert (caught.value.mark, caught.value.holder, caught.value.resource) == (None, None, None)
    assert caught.value.downstream == "http://x:81"


def test_what_is_the_services_own_fault_is_no_problem() -> None:
    assert problem_of(errors.SchemaMissingError("x")) is None
    assert problem_of(errors.EffectError("x", index=1)) is None
    unknown = problem_of(errors.OutcomeUnknownError("postgresql:secret-host lost it"))
    assert unknown is not None
    assert (unknown.status, b"secret-host" in unknown.body) == (500, False)


def test_a_fingerprint_tells_its_parts_apart() -> None:
    assert len({fingerprint("ab", "c"), fingerprint("a", "bc"), fingerprint(b"abc"), fingerprint()}) == 4
    assert fingerprint("a") == fingerprint(b"a")


def stale(*_: Any) -> Any:
    raise errors.StaleTokenError("x", resource="r", presented=TOKEN)


def call_wsgi(app: Callable[..., Any]) -> tuple[list[Any], list[bytes]]:
    calls: list[Any] = []
    answer = FenceWsgiMiddleware(app)({}, lambda *args: calls.append(args))
    parts = list(answer)
    if hasattr(answer, "close"):
        answer.close()
    return calls, parts


def test_a_wsgi_generator_that_is_refused_before_its_first_part() -> None:
    closed: list[int] = []

    def app(_: Any, start_response: Callable[..., Any]) -> Iterator[bytes]:
        try:
            start_response("200 OK", [])
            stale()
            yield b"never"
        finally:
            closed.append(1)

    calls, parts = call_wsgi(app)
    assert [call[0] for call in calls] == ["200 OK", "412 Precondition Failed"]
    assert calls[1][2][0] is errors.StaleTokenError, "so that the server may replace the headers"
    assert json.loads(parts[0])["presented"] == str(TOKEN)
    assert closed == [1]


def test_a_wsgi_answer_that_has_begun_goes_on_as_it_is() -> None:
    def app(_: Any, start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"begun"
        stale()

    with pytest.raises(errors.StaleTokenError):
        call_wsgi(app)
    assert call_wsgi(lambda _, start: [start("200 OK", []) or b"x"]) == ([("200 OK", [])], [b"x"])
    assert call_wsgi(lambda _, start: iter([b"x", b"y"]))[1] == [b"x", b"y"]
    with pytest.raises(errors.SchemaMissingError):
        call_wsgi(lambda *_: (_ for _ in ()).throw(errors.SchemaMissingError("x")))


def test_an_asgi_answer_that_has_begun_goes_on_as_it_is() -> None:
    async def begun(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        stale()

    async def socket(scope: Any, *_: Any) -> None:
        stale()

    async def run(app: Any, kind: str) -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await FenceMiddleware(app)({"type": kind}, None, send)  # type: ignore[arg-type]
        return sent

    for app, kind in ((begun, "http"), (socket, "websocket")):
        with pytest.raises(errors.StaleTokenError):
            asyncio.run(run(app, kind))
    sent = asyncio.run(run(socket, "http"))
    assert [message.get("status") for message in sent] == [412, None]
