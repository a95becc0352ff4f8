"""The verdict of a torture run, from what lies in the servers in the end."""

from typing import Any

import pytest

from fencing.history import Event, Kind, Outcome
from scheduler.console.torture._judge import Found, Report, _fallen, judge


def verdict(
    jobs: dict[str, str],
    outbox: dict[str, str],
    arrivals: dict[str, list[int]],
    *events: Event,
    synchronous: bool = True,
) -> Report:
    return judge(1.0, {}, events, Found([], jobs, outbox, arrivals), ["a", "b"], synchronous=synchronous)


def test_what_was_acknowledged_and_is_gone_is_lost_and_what_came_twice_is_doubled() -> None:
    done, sent = {"a": "completed", "b": "completed"}, {"a": "sent", "b": "sent"}
    assert verdict(done, sent, {"a": [1], "b": [1]}).clean
    assert verdict({"a": "completed"}, sent, {"a": [1], "b": [1]}).lost == ["the job 'b' is missing"]
    assert verdict(done, sent, {"a": [1]}).lost == ["the mail 'b' is sent and never arrived"]
    assert verdict(done, sent, {"a": [1], "b": [1, 2]}).doubles == ["the mail 'b' arrived again"]
    assert verdict(done, {"a": "sent"}, {"a": [1]}).lost == ["the job 'b' is completed, and its mail is not there"]
    assert verdict(done, {"a": "sent", "b": "pending"}, {"a": [1]}).lost == ["the mail 'b' is pending"]
    assert verdict(done, {"a": "sent", "b": "uncertain"}, {"a": [1]}).clean
    assert verdict({"a": "completed", "b": "dead"}, {"a": "sent"}, {"a": [1]}).clean


SECOND = 10**9


def at(moment: float, kind: Kind, outcome: Outcome, downstream: str, *resources: str, **more: Any) -> Event:
    facts = {"actor": "somebody", "began": int(moment * SECOND), "ended": int(moment * SECOND) + 1, "wall": 1, "pid": 1}
    return Event(kind, outcome, downstream=downstream, resources=resources, **{**facts, **more})


POSTGRES_FAILED_OVER = at(50, "failover", "done", "postgresql")


def test_what_an_asynchronous_failover_took_is_counted_apart() -> None:
    facts: Any = ({"a": "completed"}, {"a": "sent"}, {"a": [49 * SECOND, 51 * SECOND]}, POSTGRES_FAILED_OVER)
    report = verdict(*facts, synchronous=False)
    assert report.clean
    assert report.by_failover == ["the job 'b' is missing", "the mail 'a' arrived again"]
    report = verdict(*facts)
    assert (report.lost, report.doubles) == (["the job 'b' is missing"], ["the mail 'a' arrived again"])


@pytest.mark.parametrize(
    "arrivals",
    [[1, 2], [51, 52, 53], [10, 20, 51]],
    ids=["both before it", "one more after it", "one before that it cannot have lost"],
)
def test_a_mail_that_no_failover_can_have_doubled_is_doubled(arrivals: list[int]) -> None:
    jobs = {"a": "completed", "b": "completed"}
    moments = {"a": [moment * SECOND for moment in arrivals], "b": [1]}
    failovers = (POSTGRES_FAILED_OVER, at(1.5, "failover", "done", "redis"))
    report = verdict(jobs, {"a": "sent", "b": "sent"}, moments, *failovers, synchronous=False)
    assert report.doubles == ["the mail 'a' arrived again"]


def test_a_failover_excuses_no_stale_write_where_the_newer_mark_survived_it() -> None:
    jobs, sent = {"a": "completed", "b": "completed"}, {"a": "sent", "b": "sent"}
    for kept, stale in ((9, 1), (4, 0)):
        events = [
            at(48, "raise", "accepted", "postgresql", "account/1", token="i/l/9"),
            POSTGRES_FAILED_OVER,
            at(50, "failover", "done", "postgresql", "account/1", token=f"i/l/{kept}"),
            at(51, "write", "accepted", "postgresql", "account/1", token="i/l/5"),
        ]
        report = verdict(jobs, sent, {"a": [1], "b": [1]}, *events, synchronous=False)
        assert ([one.rule for one in report.violations], report.lost) == (["stale write accepted"] * stale, [])
        assert len(report.by_failover) == 1 - stale
        report = verdict(jobs, sent, {"a": [1], "b": [1]}, *events)
        assert len(report.lost) == 1 - stale


def test_a_job_that_a_failover_gave_back_to_an_older_holder_is_counted_apart_and_a_token_that_fell_is_not() -> None:
    claims = [at(47 + n, "claim", "done", "scheduler", "job/1", token=f"i/l/{n}") for n in (1, 2)]
    settled = at(51, "settle", "accepted", "scheduler", "job/1", token="i/l/1")
    jobs, sent = {"a": "completed", "b": "completed"}, {"a": "sent", "b": "sent"}
    report = verdict(jobs, sent, {"a": [1], "b": [1]}, *claims, POSTGRES_FAILED_OVER, settled, synchronous=False)
    assert report.clean
    assert len(report.by_failover) == 1
    fallen = at(52, "claim", "done", "scheduler", "job/2", token="i/l/1")
    report = verdict(jobs, sent, {"a": [1], "b": [1]}, *claims, POSTGRES_FAILED_OVER, fallen, synchronous=False)
    assert [one.rule for one in report.violations] == ["token repeated"]


def test_without_guards_there_is_no_outbox_to_look_into() -> None:
    assert verdict({"a": "completed", "b": "completed"}, {}, {"a": [1], "b": [1]}).clean


def test_rows_whose_tokens_fall_are_a_violation_whatever_the_record_says() -> None:
    look = Event("look", "done", "torture", "postgresql", ("account/1",))
    assert not list(_fallen(look, [("x", 1), ("y", 1), ("z", 2)]))
    (violation,) = _fallen(look, [("x", 1), ("y", 3), ("z", 2)])
    assert (violation.rule, violation.resource) == ("stale effect landed", "account/1")
    assert violation.text == "'z' of token 2 lies behind 'y' of token 3"
    report = judge(1.0, {}, [], Found([look], {}, {}, {}, [violation]), [])
    assert report.violations == [violation]
