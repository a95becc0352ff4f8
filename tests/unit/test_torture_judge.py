"""The verdict of a torture run, from what lies in the servers in the end."""

from collections import Counter

from fencing.history import Event
from scheduler.console.torture._judge import Found, Report, _fallen, judge


def verdict(
    jobs: dict[str, str], outbox: dict[str, str], copies: dict[str, int], failovers: tuple[tuple[str, int], ...] = ()
) -> Report:
    return judge(1.0, {}, [], Found([], jobs, outbox, Counter(copies)), ["a", "b"], failovers)


def test_what_was_acknowledged_and_is_gone_is_lost_and_what_came_twice_is_doubled() -> None:
    done, sent = {"a": "completed", "b": "completed"}, {"a": "sent", "b": "sent"}
    assert verdict(done, sent, {"a": 1, "b": 1}).clean
    assert verdict({"a": "completed"}, sent, {"a": 1, "b": 1}).lost == ["the job 'b' is missing"]
    assert verdict(done, sent, {"a": 1}).lost == ["the mail 'b' is sent and never arrived"]
    assert verdict(done, sent, {"a": 1, "b": 2}).doubles == ["the mail 'b' arrived 2 times"]
    assert verdict(done, {"a": "sent"}, {"a": 1}).lost == ["the job 'b' is completed, and its mail is not there"]
    assert verdict({"a": "completed", "b": "dead"}, {"a": "sent"}, {"a": 1}).clean


def test_what_an_asynchronous_failover_took_is_counted_apart() -> None:
    report = verdict({"a": "completed"}, {"c": "uncertain"}, {}, (("postgresql", 5),))
    assert report.clean
    assert len(report.by_failover) == 2


def test_without_guards_there_is_no_outbox_to_look_into() -> None:
    assert verdict({"a": "completed", "b": "completed"}, {}, {"a": 1, "b": 1}).clean


def test_rows_whose_tokens_fall_are_a_violation_whatever_the_record_says() -> None:
    look = Event("look", "done", "torture", "postgresql", ("account/1",))
    assert not list(_fallen(look, [("x", 1), ("y", 1), ("z", 2)]))
    (violation,) = _fallen(look, [("x", 1), ("y", 3), ("z", 2)])
    assert (violation.rule, violation.resource) == ("stale effect landed", "account/1")
    assert violation.text == "'z' of token 2 lies behind 'y' of token 3"
    report = judge(1.0, {}, [], Found([look], {}, {}, Counter(), [violation]), [], ())
    assert report.violations == [violation]
