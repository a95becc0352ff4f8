"""A worker's log as JSON lines."""

import json
import logging
import sys

from scheduler.console._logs import JsonLines


def record(**more: object) -> logging.LogRecord:
    one = logging.LogRecord("scheduler", logging.WARNING, __file__, 1, 'job %d is "late"\nand so on', (7,), None)
    for name, value in more.items():
        setattr(one, name, value)
    return one


def test_a_record_is_one_line_with_the_fields_that_it_has() -> None:
    line = JsonLines().format(record(job=7, token="shop/line/9", owner="me", unknown=object()))
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "WARNING",
        "logger": "scheduler",
        "message": 'job 7 is "late"\nand so on',
        "job": 7,
        "token": "shop/line/9",
        "owner": "me",
    }


def test_a_traceback_is_a_field_too() -> None:
    try:
        int("no number")
    except ValueError:
        one = record(exc_info=sys.exc_info())
    assert json.loads(JsonLines().format(one))["error"].endswith(
        "ValueError: invalid literal for int() with base 10: 'no number'"
    )
