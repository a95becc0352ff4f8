"""The services of the how-to on real servers: a process of uvicorn, and wsgiref; called with httpx."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import socket
import subprocess
import sys
import threading
import wsgiref.simple_server
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from support.waiting import eventually

from adapters.http import async_fencing_hooks, fenced, fencing_hooks
from adapters.sql import SqlGuard
from fencing import Token, errors, fenced_write, raise_fence, read_mark
from scheduler.console.embedded import Postgres

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/fence-an-http-service.md"


def block(title: str) -> str:
    match = re.search(rf'^```python title="{title}"\n(.*?)^```$', PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def token(value: int, issuer: str = "shop", lineage: str = "a") -> Token:
    return Token(value, issuer, lineage)


@pytest.fixture(scope="module")
def shop_url(postgres: Postgres, pg_names: Iterator[str]) -> Iterator[str]:
    name = next(pg_names)
    yield postgres.create_database(name).replace("postgresql://", "postgresql+psycopg://", 1)
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def engine(shop_url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(shop_url)
    yield made
    made.dispose()


@pytest.fixture(scope="module")
def payments(shop_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The ASGI service in a process of its own."""
    directory = tmp_path_factory.mktemp("payments")
    (directory / "payments.py").write_text(block("payments.py"))
    with socket.create_server(("127.0.0.1", 0)) as listener, (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "payments:app", "--fd", str(listener.fileno()), "--no-access-log"],
            cwd=directory, env={**os.environ, "SHOP_URL": shop_url}, pass_fds=[listener.fileno()],
            stdout=log, stderr=log,
        )  # fmt: skip
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            eventually(
                lambda: process.poll() is not None or "startup complete" in (directory / "log").read_text(), "it is up"
            )
            assert process.poll() is None, (directory / "log").read_text()
            yield address
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def stock(shop_url: str, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The WSGI service on a thread; its module."""
    monkeypatch.setenv("SHOP_URL", shop_url)
    (tmp_path / "stock.py").write_text(block("stock.py"))
    spec = importlib.util.spec_from_file_location("stock_service", tmp_path / "stock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Quiet(wsgiref.simple_server.WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = wsgiref.simple_server.make_server("127.0.0.1", 0, module.app, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    module.address = f"http://127.0.0.1:{server.server_port}"
    yield module
    server.shutdown()
    thread.join()
    server.server_close()
    module.engine.dispose()


def count(engine: sa.Engine, invoice: int) -> int:
    with engine.connect() as connection:
        found = connection.execute(sa.text("select count(*) from payment where invoice = :n"), {"n": invoice})
        return int(found.scalar_one())


def test_a_paused_workers_request_is_refused_by_the_service(payments: str, engine: sa.Engine) -> None:
    with httpx.Client(base_url=payments, event_hooks=fencing_hooks()) as client:
        shown = fenced("invoice/1", token=token(5), key="pay-1")
        first = client.post("/invoices/1/payments", json={"amount": 7}, extensions=shown)
        assert first.status_code == 200
        again = client.post("/invoices/1/payments", json={"amount": 7}, extensions=shown)
        assert again.json() == first.json(), "the stored answer"
        raise_fence(engine, "invoice/1", token=token(6))  # the next holder, before it has written anything
        with pytest.raises(errors.StaleTokenError) as caught:
            client.post(
                "/invoices/1/payments", json={"amount": 7}, extensions=fenced("invoice/1", token=token(5), key="x")
            )
        refused = caught.value
        assert (refused.resource, refused.presented, refused.mark) == ("invoice/1", token(5), token(6))
        assert refused.holder
        assert refused.downstream == payments
        with pytest.raises(errors.StaleTokenError):  # also for what was applied under that token
            client.post("/invoices/1/payments", json={"amount": 7}, extensions=shown)
    assert count(engine, 1) == 1


def test_each_refusal_has_its_status_and_names_no_database(payments: str, engine: sa.Engine) -> None:
    raise_fence(engine, "invoice/2", token=token(5))
    good = '"invoice/2";token="shop/a/5"'
    cases = [
        ({}, 428, "fence-missing"),
        ({"Fencing-Token": good}, 428, "fence-missing"),  # no key
        ({"Fencing-Token": '"invoice/2";token="shop/a/0"', "Idempotency-Key": '"k"'}, 400, "fence-malformed"),
        ({"Fencing-Token": "shop/a/5", "Idempotency-Key": '"k"'}, 400, "fence-malformed"),
        ({"Fencing-Token": good, "Idempotency-Key": "bare"}, 400, "fence-malformed"),
        ({"Fencing-Token": good.replace("invoice/2", "invoice/3"), "Idempotency-Key": '"k"'}, 400, "fence-malformed"),
        ({"Fencing-Token": good.replace("/5", "/4"), "Idempotency-Key": '"k"'}, 412, "stale-token"),
        ({"Fencing-Token": good.replace("shop/", "other/"), "Idempotency-Key": '"k"'}, 409, "issuer-mismatch"),
        ({"Fencing-Token": good.replace("/a/", "/b/"), "Idempotency-Key": '"k"'}, 409, "lineage-conflict"),
    ]
    with httpx.Client(base_url=payments) as client:
        for fields, status, kind in cases:
            answer = client.post("/invoices/2/payments", json={"amount": 1}, headers=fields)
            assert (answer.status_code, answer.json()["type"]) == (status, f"urn:fencing-toolkit:{kind}"), fields
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == status
            assert "postgres" not in answer.text
        assert count(engine, 2) == 0
        fields = {"Fencing-Token": good, "Idempotency-Key": '"k2"'}
        assert client.post("/invoices/2/payments", json={"amount": 1}, headers=fields).status_code == 200
        conflict = client.post("/invoices/2/payments", json={"amount": 2}, headers=fields)
        assert (conflict.status_code, conflict.json()["type"]) == (409, "urn:fencing-toolkit:key-conflict")
    assert count(engine, 2) == 1


def test_the_asyncio_client_raises_the_same(payments: str, engine: sa.Engine) -> None:
    raise_fence(engine, "invoice/3", token=token(5))

    async def main() -> None:
        async with httpx.AsyncClient(base_url=payments, event_hooks=async_fencing_hooks()) as client:
            shown = fenced("invoice/3", token=token(5), key="é")
            assert (await client.post("/invoices/3/payments", json={"amount": 1}, extensions=shown)).status_code == 200
            with pytest.raises(errors.StaleTokenError):
                old = fenced("invoice/3", token=token(4), key="é")
                await client.post("/invoices/3/payments", json={"amount": 1}, extensions=old)
            with pytest.raises(errors.KeyConflictError) as caught:
                await client.post("/invoices/3/payments", json={"amount": 2}, extensions=shown)
            assert caught.value.key == "é"
            missing = await client.get("/nothing", extensions=shown)
            assert missing.status_code == 404, "what is no problem of a fence is left to the caller"

    asyncio.run(main())


def test_a_wsgi_service(stock: Any, engine: sa.Engine) -> None:
    with httpx.Client(base_url=stock.address, event_hooks=fencing_hooks()) as client:
        put = lambda n, **show: client.put("/stock/nut", content=str(n), extensions=fenced("stock/nut", **show))  # noqa: E731
        assert put(5, token=token(5)).status_code == 204
        assert put(6, token=token(5)).status_code == 204
        with pytest.raises(errors.StaleTokenError):
            put(4, token=token(4))
        assert client.put("/stock/nut", content="4").status_code == 428
        # The newer holder is inside its transaction: the service gives up after its lock timeout.
        with engine.begin() as tx, fenced_write(tx, "stock/nut", token=token(6)):
            with pytest.raises(errors.ContentionError):
                put(7, token=token(7))
            answer = httpx.put(
                f"{stock.address}/stock/nut", content="7", headers={"Fencing-Token": '"stock/nut";token="shop/a/7"'}
            )
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        stock.guard = SqlGuard(on_missing="reject")
        with engine.begin() as tx:
            tx.execute(sa.text("delete from fencing_mark where resource = 'stock/nut'"))
        with pytest.raises(errors.MarkMissingError):
            put(8, token=token(8))
    assert read_mark(engine, "stock/nut") is None
    with engine.connect() as connection:
        assert connection.execute(sa.text("select pieces from stock")).scalar_one() == 6
