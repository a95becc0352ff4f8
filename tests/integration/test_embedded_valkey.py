"""The embedded Valkey does what the tests of the Redis adapter need of it."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from support.processes import processes_in
from support.servers import unavailable

from scheduler.console.embedded import ServerNotInstalledError, ServerUnavailableError, Valkey, _server
from scheduler.console.embedded._ports import free_port

ValkeyServer = Callable[..., Valkey]


def client(server: Valkey) -> "redis.Redis":
    return redis.Redis.from_url(server.url, decode_responses=True)


def test_it_answers_a_real_client_and_tells_its_version(valkey: Valkey, valkey_url: str) -> None:
    with redis.Redis.from_url(valkey_url, decode_responses=True) as connection:
        facts = connection.info("server")
        assert valkey.version in (facts.get("valkey_version"), facts["redis_version"])
        assert facts["process_id"] == valkey.pid


def test_it_listens_on_this_machine_only(valkey: Valkey) -> None:
    with client(valkey) as connection:
        assert connection.config_get("bind") == {"bind": "127.0.0.1"}


def test_it_keeps_nothing_unless_asked_to(valkey_server: ValkeyServer) -> None:
    server = valkey_server()
    server.command("SET", "here", "1")
    server.restart()
    assert server.command("DBSIZE") == "0"


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_with_its_append_only_file_it_keeps_what_it_has_written(valkey_server: ValkeyServer, end: str) -> None:
    server = valkey_server(appendonly=True, settings={"appendfsync": "always"})
    url = server.url
    server.command("SET", "here", "1")
    if end == "kill":
        server.kill()
        assert not server.running
        assert processes_in(server.directory) == {}
        server.start_again()
    else:
        server.restart()
    assert server.url == url
    assert server.command("GET", "here") == "1"


def test_settings_are_lines_of_its_configuration(valkey_server: ValkeyServer) -> None:
    server = valkey_server(settings={"maxmemory": "10mb", "client-output-buffer-limit": "normal 1mb 1mb 60"})
    with client(server) as connection:
        assert connection.config_get("maxmemory") == {"maxmemory": str(10 * 2**20)}


def test_a_failed_start_shows_the_end_of_the_log() -> None:
    with pytest.raises(ServerUnavailableError, match=r"(?s)did not start.*no-such-thing"):
        Valkey(settings={"no-such-thing": "1"}).start()


def test_another_valkey_on_the_chosen_port_is_not_taken_for_it(
    valkey: Valkey, valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = itertools.chain([valkey.port], (free_port() for _ in itertools.count()))
    monkeypatch.setattr(_server, "free_port", lambda: next(choices))
    server = valkey_server()
    assert server.port != valkey.port
    assert server.info("server")["process_id"] == str(server.pid)


def test_a_replica_copies_refuses_writes_and_leads_when_told(valkey_server: ValkeyServer) -> None:
    primary, replica = valkey_server(), valkey_server()
    primary.command("SET", "here", "1")
    replica.replica_of(primary)
    assert replica.command("GET", "here") == "1"
    with pytest.raises(RuntimeError, match="READONLY"):
        replica.command("SET", "here", "2")
    with client(primary) as connection:
        connection.set("here", "2")
        assert connection.wait(1, 5000) == 1
    primary.kill()
    replica.replica_of(None)
    replica.command("SET", "there", "3")
    assert replica.command("GET", "here") == "2"


def test_another_servers_program_can_be_used() -> None:
    """The second leg: Debian's Redis."""
    program = Path("/usr/bin/redis-server")
    if not program.exists():
        unavailable("no /usr/bin/redis-server: apt-get install redis-server")
    with Valkey(program=program) as server:
        assert processes_in(server.directory)
        assert server.pids == [server.pid]
        server.kill()
        server.start_again()
        assert int(server.version.split(".")[0]) >= 7


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ServerNotInstalledError, match="no server program /nowhere/valkey-server"):
        Valkey(program="/nowhere/valkey-server").start()
