"""How durations are counted, and when lag and run time are too much: the rules, without a database."""

import random
import threading
from datetime import UTC, datetime

import pytest

from scheduler import _prometheus
from scheduler._hooks import Hooks
from scheduler._measures import (
    KNOWN_FROM,
    STUCK_LEAST,
    STUCK_OTHERWISE,
    Measures,
    Percentiles,
    QueueMeasures,
    StuckJob,
    WorkerMeasures,
    lag_exceeded,
    largest,
    stuck_after,
)
from scheduler._store import Claimed
from scheduler._tally import BOUNDS, Durations, Tallies


def durations(*seconds: float) -> Durations:
    found = Durations()
    found.observe(seconds)
    return found


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_percentile_is_off_by_less_than_the_range_in_which_it_lies(share: float) -> None:
    rng = random.Random(7)
    values = sorted(rng.lognormvariate(0, 2) for _ in range(5_000))
    exact = values[int(share * len(values)) - 1]
    told = durations(*values).percentile(share)
    upper = next(bound for bound in BOUNDS if bound >= exact)
    lower = max([0.0, *(bound for bound in BOUNDS if bound < exact)])
    assert told is not None
    assert lower <= told <= upper


def test_a_percentile_is_never_above_the_longest_and_none_where_there_is_nothing() -> None:
    assert durations().percentile(0.99) is None
    assert durations(0.0003).percentile(0.99) == pytest.approx(0.0003)
    assert durations(250_000.0).percentile(0.5) == pytest.approx(250_000, rel=0.5)
    assert durations(-5.0).longest == 0.0, "a clock was set: nothing takes less than no time"


def test_many_are_counted_as_each_by_itself_would_be() -> None:
    values = [*BOUNDS, *(bound * factor for bound in BOUNDS for factor in (0.999, 1.001)), 0.0, 250_000.0, 250_000.0]
    one_by_one = durations()
    for value in values:
        one_by_one.observe([value])
    random.Random(3).shuffle(values)
    assert durations(*values).counts == one_by_one.counts
    assert durations(*[0.0015] * 30).counts == [0, 30, *[0] * (len(BOUNDS) - 1)]


def test_what_was_counted_apart_adds_up() -> None:
    one, both = durations(0.1, 3), durations(0.1, 3, 700, 0.002)
    other = durations(700, 0.002)
    one.add(other.counts, other.total, other.longest)
    assert (one.counts, one.longest) == (both.counts, both.longest)
    assert one.total == pytest.approx(both.total)


def test_lag_is_judged_by_the_oldest_due_job_and_by_the_95th_percentile_and_only_where_a_limit_was_stated() -> None:
    assert not lag_exceeded(None, 1e9, 1e9)
    assert not lag_exceeded(5, 5, 5)
    assert lag_exceeded(5, 5.1, None)
    assert lag_exceeded(5, 0, 5.1)


def test_stuck_is_what_takes_far_longer_than_usual_and_an_hour_where_nothing_is_known() -> None:
    assert stuck_after(durations()) == STUCK_OTHERWISE
    assert stuck_after(durations(*[2.0] * (KNOWN_FROM - 1))) == STUCK_OTHERWISE
    assert stuck_after(durations(*[2.0] * KNOWN_FROM)) == STUCK_LEAST
    assert 5 * 100 <= stuck_after(durations(*[150.0] * 100)) <= 5 * 200


def test_the_largest_skew_is_the_one_furthest_from_nothing() -> None:
    assert largest([0.1, -3.0, 2.0]) == -3.0
    assert largest([]) == 0.0


def test_tallies_keep_sums_since_the_beginning_and_of_the_minute() -> None:
    tallies = Tallies()
    job = Claimed(1, 1, "l", "work", "mail", "null", 0, None, 1, 5, 0, None, None, None, 0.4)  # type: ignore[arg-type]
    tallies.claimed([job, job])
    tallies.ended([("mail", "work", "completed", 0.2, False), ("mail", "work", None, 3.0, True)])
    assert tallies.sums() == tallies.gather() == tallies.sums()
    tallies.next_minute()
    tallies.claimed([job])
    sums, minute = tallies.sums(), tallies.gather()
    assert (sums["mail", "work"].claimed, minute["mail", "work"].claimed) == (3, 1)
    assert (sums["mail", "work"].lost, sums["mail", "work"].refused) == (1, 1)
    assert sums["mail", "work"].outcomes == {"completed": 1}
    assert (sums["mail", "work"].run.count, minute["mail", "work"].run.count) == (2, 0)


def test_a_look_at_the_sums_takes_nothing_from_the_minute_that_is_being_written() -> None:
    """Prometheus may ask after the measurer has gathered and before it turns the page."""
    tallies = Tallies()
    tallies.ended([("mail", "work", "completed", 0.2, False)])
    tallies.gather()
    tallies.ended([("mail", "work", "dead", 0.3, False)])
    looked = tallies.sums()
    tallies.next_minute()
    tallies.ended([("mail", "work", "retried", 0.4, False)])
    assert tallies.gather()["mail", "work"].outcomes == {"dead": 1, "retried": 1}
    assert looked["mail", "work"].outcomes == {"completed": 1, "dead": 1}, "and what was seen does not change"
    assert tallies.sums()["mail", "work"].run.count == 3


def test_a_scrape_waits_for_a_stopped_database_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prometheus, "PATIENCE", 0.05)
    monkeypatch.setattr(_prometheus, "KEEP", 3600.0)
    asked, answers, calls = threading.Event(), threading.Event(), []

    def read() -> str:
        calls.append(1)
        asked.set()
        answers.wait(60)
        return "read"

    kept = _prometheus.Kept("figures", read)
    assert kept() is None
    assert asked.wait(60)
    assert kept() is None
    assert len(calls) == 1, "one question at a time"
    answers.set()
    monkeypatch.setattr(_prometheus, "PATIENCE", 60)
    assert kept() == "read"
    assert (kept(), len(calls)) == ("read", 1)
    reading = kept._reading
    assert reading is not None
    reading.join(60)
    monkeypatch.setattr(_prometheus, "KEEP", 0.0)
    assert (kept(), len(calls)) == ("read", 2)


def test_every_figure_has_its_own_name_in_prometheus() -> None:
    lag = Percentiles(1, 0.1, 0.2, 0.3, 0.4)
    mail = QueueMeasures("mail", lag, 11.0, 12, 13.0, True, 14, 15, 16, 17, 18.0, {"completed": 19}, 20, 21)
    rest = QueueMeasures("rest", lag, 0.0, 0, None, False, 0, 0, 0, 0, 0.0, {}, 0, 0)
    now = datetime.now(UTC)
    workers = [WorkerMeasures(f"w{silent}", now, silent, ("mail",), 8, 1, 0.0, 0) for silent in (1.0, 29.0, 31.0)]
    stuck = [StuckJob(number, "work", "mail", 1, "w", 5, 4000.0) for number in (1, 2)]
    hooks, tallies = Hooks(), Tallies()
    hooks.failures, hooks.dropped, tallies.listen_reconnects = 31, 32, 33
    tallies.ended([("mail", "work", "completed", ran, False) for ran in (0.0005, 0.0015, 1e6)])
    measures = Measures(now, 300.0, (mail, rest), (), tuple(workers), tuple(stuck), 0.0)
    found: dict[str, float] = {}
    for family in _prometheus.Collector(tallies, hooks, lambda: 34, lambda: -0.5, lambda: measures).collect():
        for one in family.samples:
            found[one.name + "".join(f"[{value}]" for _, value in sorted(one.labels.items()))] = one.value
    told = {
        name: value for name, value in found.items() if name.endswith("[mail]") and name.startswith("fencing_queue_")
    }
    assert told == {
        "fencing_queue_due_jobs[mail]": 12,
        "fencing_queue_oldest_due_seconds[mail]": 11,
        "fencing_queue_acceptable_lag_seconds[mail]": 13,
        "fencing_queue_lag_exceeded[mail]": 1,
        "fencing_queue_running_jobs[mail]": 14,
        "fencing_queue_expired_leases[mail]": 15,
        "fencing_queue_stuck_jobs[mail]": 2,
        "fencing_queue_dead_jobs[mail]": 16,
    }
    assert found["fencing_queue_stuck_jobs[rest]"] == 0
    assert found["fencing_workers"] == 2, "those that were seen in the last 30 seconds"
    assert found["fencing_worker_running_jobs"] == 34
    assert found["fencing_worker_clock_skew_seconds"] == -0.5
    assert found["fencing_hook_failures_total"] == 31
    assert found["fencing_hook_events_dropped_total"] == 32
    assert found["fencing_listen_reconnects_total"] == 33
    below = [value for name, value in found.items() if name.startswith("fencing_job_run_seconds_bucket")]
    assert below == sorted(below), "each bucket counts those of the smaller ones too"
    assert (below[0], below[1], below[-2], below[-1]) == (1, 2, 2, 3)
    assert found["fencing_job_run_seconds_sum[mail][work]"] == pytest.approx(1_000_000.002)
