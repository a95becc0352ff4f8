"""Where zone data comes from: the ``tzdata`` package, and not what the machine happens to have.

Two machines with different zone data compute different instants for one rule, so the source is chosen explicitly,
carries a version, and every zone in it has a hash to record beside a schedule. Nothing here reads or sets
``zoneinfo.TZPATH``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Final
from zoneinfo import ZoneInfo

from scheduler.errors import ScheduleError

__all__ = ["ZoneSource", "packaged_zones", "zone_data_version", "zone_hash"]

# In some builds of the data, yet the names of no place's time.
_NO_PLACE: Final = frozenset({"Factory", "localtime", "posixrules"})


class ZoneSource:
    """A release of the zone data: a directory of compiled zones, the names to know, and the release's name.

    Attributes:
        version: the IANA release, such as ``"2026f"``; a later release compares greater as text.
        names: the zones that are known, spelt as in the data.
    """

    def __init__(self, root: Traversable, names: Iterable[str], version: str):
        self.version = version
        self.names = frozenset(names) - _NO_PLACE
        self._root = root
        self._zones: dict[str, tuple[ZoneInfo, str]] = {}

    def __repr__(self) -> str:
        return f"<ZoneSource {self.version}, {len(self.names)} zones>"

    def zone(self, name: str) -> ZoneInfo:
        """The zone of that name. Raises :class:`ScheduleError` if the data has no zone of exactly that name."""
        return self._load(name)[0]

    def zone_hash(self, name: str) -> str:
        """The SHA-256 of the zone's compiled data, in hexadecimal: equal hashes mean equal instants for every rule."""
        return self._load(name)[1]

    def _load(self, name: str) -> tuple[ZoneInfo, str]:
        if not isinstance(name, str):
            raise TypeError(f"tz is the name of an IANA zone such as 'Europe/Berlin', not {name!r}")
        # Threads that race here load the same bytes twice; the ZoneInfo that loses is as good as the other.
        if name not in self._zones:
            if name not in self.names:
                raise self._unknown(name)
            data = self._root.joinpath(*name.split("/")).read_bytes()
            self._zones[name] = ZoneInfo.from_file(BytesIO(data), key=name), hashlib.sha256(data).hexdigest()
        return self._zones[name]

    def _unknown(self, name: str) -> ScheduleError:
        folded = {known.casefold(): known for known in self.names}
        close = get_close_matches(name.casefold(), folded, n=3)
        hint = f"did you mean {' or '.join(folded[match] for match in close)}?" if close else "such as Europe/Berlin"
        return ScheduleError(
            f"not a zone of the IANA data {self.version}; names are exact, {hint}",
            expr=name,
            field="tz",
            length=max(1, len(name)),
        )


@cache
def packaged_zones() -> ZoneSource:
    """The zone data of the installed ``tzdata`` package: the source unless another is given."""
    root = resources.files("tzdata")
    names = root.joinpath("zones").read_text(encoding="utf-8").split()
    return ZoneSource(root.joinpath("zoneinfo"), names, str(import_module("tzdata").IANA_VERSION))


def zone_data_version() -> str:
    """The IANA release of the installed ``tzdata`` package, such as ``"2026f"``."""
    return packaged_zones().version


def zone_hash(name: str) -> str:
    """The SHA-256 of a zone's data in the installed ``tzdata`` package. Raises :class:`ScheduleError` for no zone."""
    return packaged_zones().zone_hash(name)
