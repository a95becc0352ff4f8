"""Leases and tokens from a real etcd: killed, stopped, restored from a backup, cut off; and enforced by a guard."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from support.etcd_server import Etcd
from support.processes import PythonProcess
from support.proxy import Proxy
from support.servers import available
from support.waiting import eventually

from adapters.etcd import EtcdError, EtcdLeases
from adapters.etcd._gateway import LeaseNotFoundError, encoded
from adapters.sql import create_all
from fencing import Lease, LeaseSource, current_lease, errors, fenced_write, raise_fence
from fencing._lease import lease_clock
from fencing.testing import LeaseSystem, lease_machine

CREATE = b'"request_put"'


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    """The etcd of this module: always running again when a test is over."""
    with ExitStack() as stack:
        with available():
            server = stack.enter_context(Etcd())
        yield server


@pytest.fixture
def leases(etcd: Etcd) -> Iterator[EtcdLeases]:
    with EtcdLeases(etcd.url, timeout=20) as made:
        yield made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    create_all(made)
    with made.begin() as tx:
        tx.execute(sa.text("create table effect (token text)"))
    yield made
    made.dispose()


def ask(etcd: Etcd, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What etcd itself says."""
    request = urllib.request.Request(
        f"{etcd.url}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def row_of(etcd: Etcd, name: str) -> dict[str, Any] | None:
    found = ask(etcd, "/v3/kv/range", {"key": encoded(f"fencing/lease/{name}")}).get("kvs")
    return found[0] if found else None


def etcd_leases(etcd: Etcd) -> int:
    return len(ask(etcd, "/v3/lease/leases", {}).get("leases", []))


def write(engine: sa.Engine, lease: Lease) -> None:
    def effect(tx: sa.Connection) -> None:
        tx.execute(sa.text("insert into effect values (:token)"), {"token": str(lease.token)})

    fenced_write(engine, "report", effect=effect, token=lease.token)


def test_one_holder_at_a_time_and_a_higher_token_each_time(etcd: Etcd, leases: EtcdLeases) -> None:
    assert isinstance(leases, LeaseSource)
    before = etcd_leases(etcd)
    seen = []
    with EtcdLeases(etcd.url) as other:
        for _ in range(3):
            with leases.lease("report/ü", ttl=10) as lease:
                assert current_lease() is lease
                lease.ensure()
                row = row_of(etcd, "report/ü")
                assert row is not None
                assert int(row["create_revision"]) == lease.token.value
                with pytest.raises(errors.LeaseUnavailableError) as caught, other.lease("report/ü", ttl=10):
                    pass
                assert caught.value.holder == lease.holder
                with other.lease("another", ttl=10) as beside:
                    assert beside.token > lease.token
                seen.append(lease.token)
            assert lease.ended
            assert row_of(etcd, "report/ü") is None
    assert seen == sorted(seen)
    assert etcd_leases(etcd) == before, "nothing is left to run out"


def test_a_waiter_has_it_as_soon_as_it_is_given_back(etcd: Etcd, leases: EtcdLeases) -> None:
    with EtcdLeases(etcd.url) as other:
        taken: list[Any] = []

        def wait() -> None:
            with other.lease("turn", ttl=10, wait=30) as lease:
                taken.append(lease.token)

        with leases.lease("turn", ttl=10) as first:
            waiter = threading.Thread(target=wait)
            waiter.start()
            with pytest.raises(errors.LeaseUnavailableError, match=r"0\.1 s are over"):
                leases.lease("turn", ttl=10, wait=0.1).__enter__()
        waiter.join(60)
        assert taken
        assert taken[0] > first.token


def test_asyncio_has_the_same_and_a_cancelled_wait_leaves_nothing(etcd: Etcd, leases: EtcdLeases) -> None:
    before = etcd_leases(etcd)

    async def main() -> None:
        async with leases.lease("async", ttl=10) as lease:
            assert current_lease() is lease
            assert (await asyncio.gather(inner()))[0] is lease, "a task made inside inherits it"
            waiting = asyncio.ensure_future(enter("async", wait=30))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(errors.LeaseUnavailableError):
                await enter("async", wait=0)
        with pytest.raises(errors.NoLeaseError):
            current_lease()

    async def inner() -> Lease:
        return current_lease()

    async def enter(name: str, wait: float) -> None:
        async with leases.lease(name, ttl=10, wait=wait):
            pass

    asyncio.run(main())
    eventually(lambda: etcd_leases(etcd) == before and row_of(etcd, "async") is None, "the cancelled one is gone")


def test_it_is_renewed_while_it_is_held_and_over_a_crash_of_etcd(etcd: Etcd, engine: sa.Engine) -> None:
    with EtcdLeases(etcd.url, timeout=20) as leases, leases.lease("long", ttl=60) as lease:
        with leases.lease("short", ttl=6) as short:
            end = lease_clock() + short.remaining()
            eventually(lambda: lease_clock() + short.remaining() > end + 1, "it is renewed in the background")
        etcd.kill()
        etcd.start_again()
        left = lease.remaining()
        [keeper] = leases._keepers
        keeper.renew()
        assert lease.remaining() > left, "its etcd lease has survived the restart"
        row = row_of(etcd, "long")
        assert row is not None
        assert int(row["create_revision"]) == lease.token.value
        write(engine, lease)
    with EtcdLeases(etcd.url) as leases, leases.lease("long", ttl=60) as after:
        assert after.token > lease.token, "revisions survive a kill"
        write(engine, after)
        with pytest.raises(errors.StaleTokenError):
            write(engine, lease)


def test_an_etcd_that_does_not_answer_extends_nothing(etcd: Etcd, caplog: pytest.LogCaptureFixture) -> None:
    with EtcdLeases(etcd.url, timeout=3) as leases:
        with leases.lease("frozen", ttl=1) as lease:
            for pid in etcd.pids:
                subprocess.run(["kill", "-STOP", str(pid)], check=True)
            try:
                assert lease.lost.wait(60)
                with pytest.raises(errors.LeaseLostError):
                    lease.ensure()
                with pytest.raises(EtcdError, match="cannot be reached"), leases.lease("other", ttl=1):
                    pass
            finally:
                for pid in etcd.pids:
                    subprocess.run(["kill", "-CONT", str(pid)], check=True)
        assert "not renewed in time" in caplog.text


def test_a_lease_that_is_revoked_or_whose_key_is_another_is_lost(etcd: Etcd, leases: EtcdLeases) -> None:
    with leases.lease("revoked", ttl=1) as lease:
        row = row_of(etcd, "revoked")
        assert row is not None
        ask(etcd, "/v3/lease/revoke", {"ID": row["lease"]})
        assert lease.lost.wait(60)
    with leases.lease("stolen", ttl=1) as lease:
        ask(etcd, "/v3/kv/deleterange", {"key": encoded("fencing/lease/stolen")})
        with EtcdLeases(etcd.url) as thief, thief.lease("stolen", ttl=10) as newer:
            assert lease.lost.wait(60)
            assert newer.token > lease.token
            leases.release(_held(leases, lease))
            row = row_of(etcd, "stolen")
            assert row is not None, "a late holder frees nothing but its own"
            assert int(row["create_revision"]) == newer.token.value


def _held(leases: EtcdLeases, lease: Lease) -> Any:
    from adapters.etcd._leases import Held

    [keeper] = [keeper for keeper in leases._keepers if keeper._lease is lease]
    return Held(lease, encoded(f"fencing/lease/{lease.name}"), keeper._etcd_lease, keeper)


WORKER = """
import sys
import sqlalchemy as sa
from adapters.etcd import EtcdLeases
from fencing import errors, fenced_write

url, database = sys.argv[1:]
engine = sa.create_engine(f"sqlite:///{database}")

def effect(tx):
    tx.execute(sa.text("insert into effect values (:token)"), {"token": str(lease.token)})

with EtcdLeases(url) as leases, leases.lease("report", ttl=1) as lease:
    print(lease.token)
    sys.stdin.readline()
    try:
        fenced_write(engine, "report", effect=effect)
        print("written")
    except errors.StaleTokenError as refused:
        print("refused", refused.presented, refused.mark)
    print("lost", lease.lost.wait(60))
"""


def test_a_paused_worker_is_refused_once_another_has_its_lease(
    etcd: Etcd, leases: EtcdLeases, engine: sa.Engine, tmp_path: Path
) -> None:
    with PythonProcess(WORKER, etcd.url, str(tmp_path / "shop.db")) as paused:
        older = paused.line()
        paused.pause()
        with leases.lease("report", ttl=10, wait=30) as lease:
            raise_fence(engine, "report")
            paused.tell("")
            paused.resume()
            paused.expect(f"refused {older} {lease.token}")
            paused.expect("lost True")
            write(engine, lease)
        with engine.connect() as connection:
            assert connection.execute(sa.text("select token from effect")).scalars().all() == [str(lease.token)]


@pytest.mark.parametrize("loss", ["lose_reply", "lose_request"])
def test_a_lost_answer_is_one_lease(etcd: Etcd, loss: str) -> None:
    before = etcd_leases(etcd)
    with Proxy(etcd.port) as proxy, EtcdLeases(f"http://127.0.0.1:{proxy.port}", timeout=20) as leases:
        with leases.lease("first", ttl=10):
            pass
        getattr(proxy, loss)(CREATE)
        with leases.lease("lost", ttl=10) as lease:
            assert proxy.seen == 2
            row = row_of(etcd, "lost")
            assert row is not None
            assert int(row["create_revision"]) == lease.token.value
        assert row_of(etcd, "lost") is None
        getattr(proxy, loss)(CREATE, times=20)
        with pytest.raises(EtcdError), leases.lease("lost", ttl=10):
            pass
        assert proxy.seen == 3
    assert etcd_leases(etcd) == before


def test_several_endpoints_are_tried_in_turn(etcd: Etcd) -> None:
    with EtcdLeases(["http://127.0.0.1:1", etcd.url], timeout=2) as leases:
        with leases.lease("turns", ttl=10), leases.lease("turns/2", ttl=10):
            pass


def test_two_clusters_that_were_started_alike_have_no_order(etcd: Etcd, leases: EtcdLeases, engine: sa.Engine) -> None:
    with Etcd() as twin, EtcdLeases(twin.url) as others:
        with leases.lease("report", ttl=10) as one, others.lease("report", ttl=10) as other:
            assert one.token.issuer.rpartition("-")[0] == other.token.issuer.rpartition("-")[0], "the ids are the same"
            with pytest.raises(errors.IssuerMismatchError):
                _ = one.token < other.token
            write(engine, one)
            with pytest.raises(errors.IssuerMismatchError):
                write(engine, other)


def test_a_cluster_restored_from_a_backup_is_refused_where_it_repeats_itself(engine: sa.Engine, tmp_path: Path) -> None:
    with Etcd() as server, EtcdLeases(server.url) as leases:
        with leases.lease("report", ttl=10):
            pass
        server.kill()
        shutil.copytree(server.data, tmp_path / "backup")
        server.start_again()
        with leases.lease("report", ttl=10) as original:
            write(engine, original)
        server.kill()
        owner = server.data.stat()
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "backup", server.data)
        for path in (server.data, *server.data.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        server.start_again()
        with leases.lease("report", ttl=10) as repeated:
            assert (repeated.token.value, repeated.token.issuer) == (original.token.value, original.token.issuer)
            with pytest.raises(errors.LineageConflictError):
                write(engine, repeated)


def test_users_of_etcd(tmp_path: Path) -> None:
    with Etcd() as server:
        role = {"name": "root", "perm": {"permType": "READWRITE", "key": "AA==", "range_end": "AA=="}}
        ask(server, "/v3/auth/role/add", {"name": "root"})
        ask(server, "/v3/auth/role/grant", role)
        ask(server, "/v3/auth/user/add", {"name": "root", "password": "secret"})
        ask(server, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        ask(server, "/v3/auth/enable", {})
        with EtcdLeases(server.url, user="root", password="secret") as leases, leases.lease("a", ttl=10) as lease:
            assert lease.token.value > 0
            leases._gateway._credential = "stale.1"  # as after a restart of etcd, which forgets them
            with leases.lease("b", ttl=10) as other:
                assert other.token > lease.token
        for options in ({}, {"user": "root", "password": "wrong"}):
            with EtcdLeases(server.url, **options) as leases, pytest.raises(EtcdError), leases.lease("a", ttl=10):
                pass


def test_what_is_no_etcd_or_no_lease_is_refused(leases: EtcdLeases, valkey_url: str) -> None:
    for endpoints in ([], "127.0.0.1:2379", [5]):
        with pytest.raises(ValueError, match="endpoints"):
            EtcdLeases(endpoints)  # type: ignore[arg-type]
    for ttl, wait in ((0, 0), (-1, 0), (float("nan"), 0), (float("inf"), 0), (1, -1)):
        with pytest.raises(ValueError, match="ttl"):
            leases.lease("a", ttl=ttl, wait=wait)
    with pytest.raises(ValueError):
        leases.lease("", ttl=1)
    with EtcdLeases("http" + valkey_url.removeprefix("redis").removesuffix("/0"), timeout=2) as wrong:
        with pytest.raises(EtcdError), wrong.lease("a", ttl=1):
            pass


class EtcdSystem(LeaseSystem):
    """etcd for the kit's machine of leases."""

    name = "etcd"

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._sources: dict[str, EtcdLeases] = {}

    def fresh(self) -> None:
        ask(
            self._etcd, "/v3/kv/deleterange", {"key": encoded("fencing/lease/"), "range_end": encoded("fencing/lease0")}
        )

    def source(self, owner: str) -> EtcdLeases:
        if owner not in self._sources:
            self._sources[owner] = EtcdLeases(self._etcd.url)
        return self._sources[owner]

    def run_out(self, name: str) -> None:
        row = row_of(self._etcd, name)
        assert row is not None
        ask(self._etcd, "/v3/lease/revoke", {"ID": row["lease"]})

    def renew(self, owner: str) -> None:
        for keeper in list(self.source(owner)._keepers):
            try:
                keeper.renew()
            except LeaseNotFoundError:
                keeper._lease.lose()


def test_a_lease_is_had_by_one_at_a_time(etcd: Etcd) -> None:
    system = EtcdSystem(etcd)
    run_state_machine_as_test(
        lease_machine(system),
        settings=settings(max_examples=8, stateful_step_count=15, deadline=None, report_multiple_bugs=False),
    )
    for source in system._sources.values():
        source.close()


def test_an_answer_that_nobody_foresaw_does_not_end_the_thread_that_tells_of_a_lost_lease(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with EtcdLeases(etcd.url) as leases, leases.lease("odd", ttl=1) as lease:
        [keeper] = leases._keepers
        monkeypatch.setattr(keeper, "renew", {}.__getitem__)  # a TypeError at every call
        assert lease.lost.wait(60)
    assert "could not be renewed" in caplog.text
