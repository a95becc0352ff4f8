"""``fencing bench outbox-faults``: its own code, as a test. And many relays on one table, some of them killed."""

import json
from collections.abc import Iterator

import pytest
from support.servers import IN_CI

from scheduler.console.bench import _faults
from scheduler.console.bench._crowd import crowd
from scheduler.console.bench._fault_relay import POINTS
from scheduler.console.bench._faults import FAULTS, POLICIES, Cell, fault_matrix, problems
from scheduler.console.cli import main
from scheduler.console.embedded import Postgres, SmtpSink

pytestmark = pytest.mark.timeout(900)  # more than ten processes start at once
BEFORE_THE_GATE = ("claimed", "rcpt")


@pytest.fixture(scope="module")
def cells(postgres: Postgres, pg_names: Iterator[str]) -> Iterator[list[Cell]]:
    database = next(pg_names)
    with SmtpSink() as sink:
        yield fault_matrix(postgres.create_database(database), sink)
    postgres.drop_database(database)


def test_no_promise_is_broken_at_any_point(cells: list[Cell]) -> None:
    assert problems(cells) == []
    assert {(cell.point, cell.fault, cell.policy) for cell in cells} == {
        (point, fault, policy) for point in POINTS for fault in FAULTS for policy in POLICIES
    }


def test_under_hold_there_is_one_copy_or_a_person_is_told(cells: list[Cell]) -> None:
    found = {(cell.point, cell.fault): (cell.copies, cell.state) for cell in cells if cell.policy == "hold"}
    for fault in FAULTS:
        for point in (*BEFORE_THE_GATE, "recorded"):
            assert found[point, fault] == (1, "sent")
    assert found["dispatching", "kill"] == (0, "uncertain")
    assert found["answered", "kill"] == (1, "uncertain")
    # It comes back with evidence about its own dispatch, which ends the doubt.
    assert found["dispatching", "stop"] == found["answered", "stop"] == (1, "sent")


def test_under_resend_it_is_sent_in_the_end_and_a_second_copy_is_the_same(cells: list[Cell]) -> None:
    found = {(cell.point, cell.fault): (cell.copies, cell.state) for cell in cells if cell.policy == "resend"}
    assert {state for _, state in found.values()} == {"sent"}
    for fault in FAULTS:
        for point in (*BEFORE_THE_GATE, "recorded"):
            assert found[point, fault][0] == 1
        assert found["answered", fault][0] == 2
    assert found["dispatching", "kill"][0] == 1
    assert found["dispatching", "stop"][0] == 2


def test_a_broken_promise_is_told() -> None:
    good = {"point": "rcpt", "fault": "stop", "copies": 1, "state": "sent", "identical": True, "kept": True}
    for change, told in (
        ({"policy": "hold", "copies": 2}, "hold, stop at rcpt: 2 copies"),
        ({"policy": "hold", "copies": 0}, "nobody is told"),
        ({"policy": "resend", "copies": 0}, "no copy, where one is the least"),
        ({"policy": "resend", "state": "uncertain"}, "it is uncertain, where it should be sent"),
        ({"policy": "resend", "identical": False}, "a copy is not the message that was put"),
        ({"policy": "resend", "kept": False}, "an older token wrote over"),
    ):
        [problem] = problems([Cell(**{**good, **change})])  # type: ignore[arg-type]
        assert told in problem
    assert problems([Cell(**{**good, "policy": "hold", "copies": 0, "state": "uncertain"})]) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_prints_the_matrix_and_says_whether_all_is_well(
    broken: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        Cell(point, fault, policy, 2 if broken else 1, "sent", identical=True, kept=True)
        for policy in POLICIES
        for fault in FAULTS
        for point in POINTS
    ]
    monkeypatch.setattr(_faults, "fault_matrix", lambda *_: made)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "outbox-faults", "--json", "--dsn", "postgresql://not-asked-for"])
    assert ended.value.code == int(broken)
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert found[0] == {"point": "claimed", "fault": "stop", "policy": "hold", "copies": 1 + broken, "state": "sent"}
    assert ("2 copies" in output.err) is broken
    with pytest.raises(SystemExit):
        main(["bench", "outbox-faults", "--dsn", "postgresql://not-asked-for"])
    table = capsys.readouterr().out
    assert "250 seen, not recorded" in table
    assert "stop and continue" in table
    with pytest.raises(SystemExit) as ended:
        main(["bench", "outbox-faults", "outbox"])
    assert ended.value.code == 2


def test_eight_relays_of_which_two_are_killed_send_each_message_once_or_show_it(
    pg_dsn: str, smtp_sink: SmtpSink
) -> None:
    end = crowd(pg_dsn, smtp_sink, messages=300 if IN_CI else 2000)
    assert list(end.problems()) == []
    assert end.killed == 2
    assert end.uncertain <= 2 * end.killed  # what a killed one had in hand, and no more than that


def test_the_bench_prints_one_ratio_for_each_name(pg_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "outbox", "--json", "--rounds", "1", "--scale", "0.005", "--dsn", pg_dsn])
    assert ended.value.code in (0, 1)  # a goal that is missed on a busy machine says nothing
    output = capsys.readouterr()
    figures = json.loads(output.out)
    assert list(figures) == ["relay", "claim_backlog"]
    assert all(figure["ours"] > 0 for figure in figures.values())
    assert "fencing_outbox_pending" in output.err  # the plan
