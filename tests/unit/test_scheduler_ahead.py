"""When a worker looks for the next job that it knows of."""

from scheduler._ahead import AGAIN, FIRST, Ahead

INFINITY = float("inf")


def test_the_wait_ends_when_the_next_job_is_due_and_one_look_follows_it() -> None:
    ahead = Ahead(0.5)
    assert ahead.wait(100.0) == INFINITY
    ahead.saw(107.0)
    assert ahead.wait(100.0) == 7.0
    assert not ahead.expected(106.9)
    assert ahead.expected(107.0)
    ahead.looked(expected=True, found=True)
    assert ahead.wait(107.1) == AGAIN, "more may be due that were behind the first"
    assert ahead.wait(107.2) == INFINITY
    assert not ahead.expected(107.2)


def test_who_comes_for_nothing_comes_later_up_to_a_bound_until_there_is_something() -> None:
    """Or all idle workers would ask for each job that becomes due."""
    ahead, waits = Ahead(0.5), []
    for _ in range(10):
        ahead.looked(expected=True, found=False)
        ahead.saw(0.0)
        waits.append(ahead.wait(0.0))
    assert waits[:3] == [FIRST, 2 * FIRST, 4 * FIRST]
    assert waits[-1] == 0.5
    ahead.looked(expected=False, found=False)
    assert ahead.wait(0.0) == 0.5, "a look for something else says nothing"
    ahead.looked(expected=False, found=True)
    ahead.saw(11.0)
    assert ahead.wait(10.0) == 1.0
