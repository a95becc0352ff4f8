"""The pictures of an event record: what they must show, and what they must never do."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from fencing.history import Event, Kind, Outcome, draw_html, draw_text
from fencing.history._lanes import lay_out, shorten

A, B, RELAY = "host:11:aa", "host:12:bb", "host:12:relay"
OLD, NEW, LATEST = (f"shop-1/l1/{value}" for value in (123000000000048, 123000000000049, 123000000000050))
JOB, INVOICE, MAIL = "job/1", "invoice/7", "outbox/invoice/7"
SQL, REDIS, SMTP = "postgresql:shop", "redis:localhost:6379/0", "smtp://localhost:25"
NAMES = {A: "worker A", B: "worker B", "scheduler": "scheduler", SQL: "PostgreSQL", REDIS: "Valkey", SMTP: "mail"}


class Record:
    """Writes events with a clock of its own, in milliseconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(
        self,
        at: float,
        kind: Kind,
        outcome: Outcome,
        actor: str,
        place: str = "",
        what: str = "",
        token: str = "",
        **more: Any,
    ) -> None:
        moment = 10**12 + round(at * 10**6)
        resources = (what,) if what else ()
        self.events.append(
            Event(kind, outcome, actor, place, resources, token, began=moment, ended=moment, wall=1, pid=1, **more)
        )


@pytest.fixture
def takeover() -> list[Event]:
    record = Record()
    add = record.add
    add(0, "claim", "done", A, "scheduler", JOB, OLD)
    add(1, "start", "done", A, "scheduler", JOB, OLD)
    add(2, "raise", "accepted", A, SQL, INVOICE, OLD)
    add(3, "pause", "done", A, token=OLD, detail="SIGSTOP")
    add(1500, "expire", "done", A, "", JOB, OLD)
    add(1600, "rescue", "done", A, "scheduler", JOB, OLD, detail="ready")
    add(1610, "claim", "done", B, "scheduler", JOB, NEW)
    add(1620, "write", "accepted", B, SQL, INVOICE, NEW)
    add(1630, "write", "accepted", B, SQL, MAIL, NEW)
    add(1640, "settle", "accepted", B, "scheduler", JOB, NEW, detail="completed")
    add(1900, "wake", "done", A, token=OLD, detail="SIGCONT")
    add(1910, "write", "refused", A, SQL, INVOICE, OLD, error="StaleTokenError")
    add(1920, "write", "refused", A, SQL, MAIL, OLD, error="StaleTokenError")
    add(1930, "settle", "refused", A, "scheduler", JOB, OLD, error="lost", detail="completed")
    return record.events


TAKEOVER = """\
         ┌ worker A
         │  ┌ worker B
         │  │  ┌ scheduler
         │  │  │  ┌ PostgreSQL
         │  │  │  │  ┌ outbox
         │  │  │  │  │
  +0.000 ●──┼─▶✓  │  │  claims job/1 under …048
  +0.002 ●──┼──┼─▶✓  │  raises the fence of invoice/7 to …048
  +0.003 ■  │  │  │  │  worker A is stopped (SIGSTOP)
         ▒  │  │  │  │  … 1.5 s
  +1.500 ◇  │  │  │  │  the lease of worker A on job/1 has run out
  +1.600 ▒  │  ◇  │  │  job/1 is taken back from worker A
  +1.610 ▒  ●─▶✓  │  │  claims job/1 under …049
  +1.620 ▒  ●──┼─▶✓  │  writes invoice/7 under …049
  +1.630 ▒  ●──┼──┼─▶✓  puts outbox/invoice/7 under …049
  +1.640 ▒  ●─▶✓  │  │  settles job/1 as completed under …049
         ▒  │  │  │  │  … 0.3 s
  +1.900 ▶  │  │  │  │  worker A wakes up after 1.9 s and carries on
  +1.910 ●╌╌┼╌╌┼╌▶✗  │  writes invoice/7 under …048: REFUSED, the mark is …049
  +1.920 ●╌╌┼╌╌┼╌╌┼╌▶✗  puts outbox/invoice/7 under …048
         ╏  │  │  │  │    REFUSED, the mark is …049
  +1.930 ●╌╌┼╌▶✗  │  │  settles job/1 as completed under …048
         │  │  │  │  │    REFUSED, the mark is …049

┃ leased   ╏ lease run out   ▒ stopped   ✓ accepted   ✗ refused
…048 is shop-1/l1/123000000000048
…049 is shop-1/l1/123000000000049"""


def test_a_takeover_in_the_terminal(takeover: list[Event]) -> None:
    assert draw_text(takeover, names=NAMES, width=80, colour=False, unicode=True) == TAKEOVER


def test_the_order_is_that_of_the_ends_whatever_the_order_of_the_events(takeover: list[Event]) -> None:
    assert draw_text(takeover[::-1], names=NAMES, width=80, colour=False, unicode=True) == TAKEOVER


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(takeover: list[Event], width: int, unicode: bool) -> None:
    long = replace(takeover[2], resources=("invoice/" + "very-long-name/" * 9, "and another one"))
    text = draw_text([*takeover, long], names=NAMES, width=width, colour=False, unicode=unicode)
    assert max(map(len, text.splitlines())) <= width
    assert unicode or text.isascii()


def test_colours_add_nothing_but_colours(takeover: list[Event]) -> None:
    coloured = draw_text(takeover, names=NAMES, width=80, colour=True, unicode=True)
    assert coloured != TAKEOVER
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == TAKEOVER


@pytest.mark.parametrize(
    ("terminal", "no_color", "term", "coloured"),
    [(True, "", "xterm", True), (True, "1", "xterm", False), (True, "", "dumb", False), (False, "", "xterm", False)],
)
def test_colours_only_for_a_terminal_that_wants_them(
    takeover: list[Event], monkeypatch: pytest.MonkeyPatch, terminal: bool, no_color: str, term: str, coloured: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    assert ("\x1b[" in draw_text(takeover)) is coloured


def test_a_write_that_is_accepted_after_a_newer_one_is_damage(takeover: list[Event]) -> None:
    late = replace(takeover[-3], outcome="accepted", error="")
    text = draw_text([*takeover[:-3], late], names=NAMES, width=120, colour=False, unicode=True)
    assert "writes invoice/7 under …048: ACCEPTED, though …049 had been here: damage" in text
    assert "! damage" in text
    assert [row.sign for row in lay_out([*takeover[:-3], late]).rows].count("broken") == 1


def test_equal_and_newer_tokens_and_those_of_other_issuers_are_no_damage() -> None:
    record = Record()
    for at, token in enumerate([OLD, OLD, NEW, "other/l1/5", "no token at all", ""]):
        record.add(at, "write", "accepted", A, SQL, INVOICE, token)
    assert {row.sign for row in lay_out(record.events).rows} == {"accepted"}


def test_the_relays_claim_of_a_row_does_not_pass_for_the_outboxs_mark(takeover: list[Event]) -> None:
    record = Record()
    record.events = takeover[:-3]
    record.add(1700, "claim", "accepted", RELAY, "outbox", MAIL, LATEST)
    record.add(1710, "send", "accepted", RELAY, SMTP, MAIL, LATEST)
    record.add(1720, "settle", "done", RELAY, "outbox", MAIL, LATEST, detail="sent")
    layout = lay_out([*record.events, *takeover[-3:]], NAMES)
    refused = next(row for row in layout.rows if row.sign == "refused" and row.event.resources == (MAIL,))
    assert refused.said.end == "REFUSED, the mark is …049"
    assert layout.lanes[refused.target or 0].name == "outbox"


def test_a_lane_shows_the_lease_that_ran_out_until_its_holder_learns_of_it(takeover: list[Event]) -> None:
    states = [row.after[0].state for row in lay_out(takeover, NAMES).rows]
    assert states == ["leased"] * 2 + ["stopped"] * 7 + ["expired"] * 3 + ["idle"]


def test_a_killed_actor_has_no_lane_any_more(takeover: list[Event]) -> None:
    record = Record()
    record.events = takeover[:3]
    record.add(10, "kill", "done", A)
    record.add(20, "note", "done", B, detail="is still there")
    text = draw_text(record.events, names=NAMES, width=80, colour=False, unicode=True)
    assert text.splitlines()[-4].startswith("  +0.020    ●")


def test_a_failover_says_which_mark_survived(takeover: list[Event]) -> None:
    record = Record()
    record.events = takeover[:3]
    record.add(10, "failover", "done", "nemesis", SQL)
    record.add(10, "failover", "done", "nemesis", SQL, INVOICE, NEW)
    text = draw_text(record.events, names=NAMES, width=120, colour=False, unicode=True)
    assert "is replaced by its standby\n" in text
    assert "is replaced by its standby (invoice/7: …049)" in text


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("unknown", "OUTCOME UNKNOWN"),
        ("contention", "NOT WRITTEN: somebody else held it for too long"),
        ("failed", "FAILED (ValueError)"),
        ("lost", "LOST: taken over meanwhile"),
        ("refused", "REFUSED (ValueError)"),
        ("repeated", ""),
    ],
)
def test_every_end_is_told_in_words(outcome: Outcome, words: str) -> None:
    record = Record()
    record.add(0, "write", outcome, A, SQL, INVOICE, OLD, error="ValueError")
    (row,) = lay_out(record.events).rows
    assert row.said.end == words


def test_two_keys_with_one_name_share_a_lane_and_lanes_stand_in_the_order_of_the_names(takeover: list[Event]) -> None:
    lanes = lay_out(takeover, {"outbox": "storage", SQL: "storage", B: "second", A: "first"}).lanes
    assert [lane.name for lane in lanes] == ["second", "first", "storage", "scheduler"]


@pytest.mark.parametrize(
    ("values", "short"),
    [
        (["123000000000048", "123000000000049"], ("…048", "…049")),
        (["9000000000000001", "1000000000000001"], ("9000000000000001", "1000000000000001")),
        (["41048", "42048", "42049"], ("…1048", "…2048", "…2049")),
        (["7"], ("7",)),
        ([], ()),
    ],
)
def test_short_names_tell_tokens_apart(values: list[str], short: tuple[str, ...]) -> None:
    assert shorten([f"shop/l1/{value}" for value in values]) == short


def test_names_cannot_write_to_the_terminal_or_the_page() -> None:
    record = Record()
    record.add(0, "write", "failed", "\x1b[2Jevil", "<script>alert(1)</script>", '"><img src=x>', OLD, error="<b>\x07")
    text = draw_text(record.events, width=80, colour=False)
    page = draw_html(record.events, title="<i>title</i>", lead="<p>", facts=[("<u>", True)])
    assert "\x1b" not in text
    assert "\x07" not in text
    assert not re.search(r"<(script|img|i>|u>|b>\x07)", page)


def test_nothing_happened() -> None:
    assert draw_text([]) == "nothing happened"
    assert "Nothing happened." in draw_html([], title="Empty")


class Page(HTMLParser):
    """What a browser would read: the words of the rows, and whatever leads out of the page."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.rows: list[str] = []
        self._hidden = 0
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag in self.VOID:
            return
        self.open.append(tag)
        if tag == "li":
            self.rows.append("")
        if self._hidden or ("aria-hidden", "true") in attrs:
            self._hidden += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._hidden = max(0, self._hidden - 1)

    def handle_data(self, data: str) -> None:
        if "li" in self.open and not self._hidden:
            self.rows[-1] += data


def test_the_page_is_one_file_and_its_words_are_the_picture(takeover: list[Event]) -> None:
    text = draw_html(takeover, title="A takeover", lead="What happened.", facts=[("one invoice", True)], names=NAMES)
    page = Page(text)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert not [name for name, _ in page.attributes if name in ("src", "href", "srcset", "action", "style")] or all(
        value.startswith("min-height:") for name, value in page.attributes if name == "style"
    )
    assert not re.search(r"https?:|url\(|@import|@font-face", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    rows = [" ".join(row.split()) for row in page.rows]
    assert "+1.910 s worker A writes invoice/7 under …048 (PostgreSQL) REFUSED, the mark is …049" in rows
    assert "1.5 s pass" in rows
    assert "…048 shop-1/l1/123000000000048" in rows
    assert "one invoice" in rows
    for row in lay_out(takeover, NAMES).rows:
        assert any(f"{row.said.subject} {row.said.text}" in shown and row.said.end in shown for shown in rows), row.said
