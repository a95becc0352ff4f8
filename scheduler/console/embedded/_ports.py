"""A port of 127.0.0.1 for a server to listen on."""

import errno
import random
import socket
from pathlib import Path

_FIRST = 10240


def free_port() -> int:
    """A port that nobody listens on right now. Another process can still take it: start, and try again.

    It lies below the range that the system gives to outgoing connections. A port in that range could be
    taken by any client while the server restarts, and a client that keeps trying a port in that range
    can end up connected to itself.
    """
    chooser = random.SystemRandom()  # a seeded program, twice at once, must not choose the same ports
    for port in chooser.sample(range(_FIRST, _first_outgoing()), 200):
        if _is_free(port):
            return port
    raise OSError(errno.EADDRINUSE, f"200 ports tried on 127.0.0.1 from {_FIRST} on, all of them taken")


def _first_outgoing() -> int:
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):  # another system: they start at 49152 or 32768
        low = 32768
    return low if low > _FIRST + 1000 else 55000


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: without it, connections of an earlier server that linger make a port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
