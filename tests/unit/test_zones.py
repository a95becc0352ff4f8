"""The zone data: one source, chosen explicitly, with a version and hashes, and no names but its own."""

import hashlib
import re
import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
import tzdata
from support.cron_oracle import changes

from scheduler import _zones
from scheduler._zones import ZoneSource, packaged_zones, zone_data_version, zone_hash
from scheduler.errors import ScheduleError

OLD = ZoneSource(Path(__file__).parents[1] / "data" / "zoneinfo_2025b", ["America/Vancouver"], "2025b")


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "europe/berlin", "EUROPE/BERLIN", "Utc", "posixrules", "localtime", "Factory", "/etc/localtime",
        "/UTC", "../UTC", "Europe/../UTC", "Europe/Berlin/", "Europe//Berlin", "Europe", "EST5EDT+1",
        "EST5EDT4,M3.2.0,M11.1.0", "UTC+3", "GMT+25", "CEST", "Europe/Berlin ", "Europe\\Berlin", "Europe/Berlin\0",
        "zone.tab", "tzdata.zi",
        "__init__.py", "right/UTC", "posix/UTC", "Europe/Atlantis", "C:\\UTC",
    ],
)  # fmt: skip
def test_a_name_that_the_data_does_not_have_is_refused(name):
    for ask in (packaged_zones().zone, zone_hash):
        with pytest.raises(ScheduleError, match="not a zone of the IANA data") as caught:
            ask(name)
        assert (caught.value.field, caught.value.expr) == ("tz", name)


def test_a_near_miss_is_told_the_name():
    with pytest.raises(ScheduleError, match="did you mean Europe/Berlin"):
        packaged_zones().zone("europe/berlin")
    with pytest.raises(ScheduleError, match=r"did you mean .*America/New_York"):
        packaged_zones().zone("America/NewYork")


def test_links_and_zones_without_a_place_are_names_too():
    for name in ("UTC", "Etc/GMT+3", "EST5EDT", "US/Eastern", "Asia/Kolkata", "America/Argentina/Ushuaia"):
        assert packaged_zones().zone(name).key == name


def test_every_name_has_a_zone_and_a_hash():
    source = packaged_zones()
    assert len(source.names) > 500
    for name in source.names:
        assert source.zone(name).utcoffset(datetime(2026, 1, 1)) is not None
        assert re.fullmatch("[0-9a-f]{64}", source.zone_hash(name))


def test_the_version_and_the_hash_are_those_of_the_package():
    assert zone_data_version() == packaged_zones().version == tzdata.IANA_VERSION
    data = resources.files("tzdata").joinpath("zoneinfo", "Europe", "Berlin").read_bytes()
    assert zone_hash("Europe/Berlin") == hashlib.sha256(data).hexdigest()


def test_links_to_one_zone_have_one_hash_and_other_data_another():
    assert zone_hash("US/Eastern") == zone_hash("America/New_York")
    assert zone_hash("Europe/Berlin") != zone_hash("Europe/Paris")
    assert OLD.zone_hash("America/Vancouver") != zone_hash("America/Vancouver")
    assert OLD.version < zone_data_version()


def test_the_machine_s_own_zone_data_is_neither_read_nor_changed(monkeypatch):
    path = zoneinfo.TZPATH
    monkeypatch.setattr(zoneinfo, "TZPATH", ("/nowhere",))
    fresh = ZoneSource(resources.files("tzdata").joinpath("zoneinfo"), ["Europe/Berlin"], "test")
    zone = fresh.zone("Europe/Berlin")
    assert zone is not zoneinfo.ZoneInfo("Europe/Berlin")
    assert zoneinfo.TZPATH == ("/nowhere",)
    monkeypatch.undo()
    assert path == zoneinfo.TZPATH


def test_a_zone_is_read_once():
    assert packaged_zones() is _zones.packaged_zones()
    assert packaged_zones().zone("Asia/Dhaka") is packaged_zones().zone("Asia/Dhaka")


def test_a_source_of_one_s_own_knows_its_own_names_only():
    winter = datetime(2026, 12, 1, tzinfo=UTC)
    assert winter.astimezone(OLD.zone("America/Vancouver")).utcoffset() == timedelta(hours=-8)
    assert winter.astimezone(packaged_zones().zone("America/Vancouver")).utcoffset() == timedelta(hours=-7)
    with pytest.raises(ScheduleError, match="IANA data 2025b"):
        OLD.zone("Europe/Berlin")


def test_changes_of_offset_are_days_apart_as_the_search_for_a_window_s_start_supposes():
    # _dst.earliest_local looks 26 hours to either side of an instant, and would miss a change in between two others.
    for name in ("Asia/Gaza", "America/Boa_Vista"):
        found = list(changes(packaged_zones().zone(name), 2000, 2040))
        assert min(right - left for left, right in pairwise(found)) > timedelta(hours=52)
