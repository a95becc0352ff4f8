"""Nothing is decided by the application's wall clock: a node whose clock is an hour off behaves like any other."""

import ast
from importlib.resources import files

WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
# A doctor compares the two clocks, and so does the measurer; nothing is decided by it.
ALLOWED = {"_doctor.py", "_measurer.py"}


def test_the_scheduler_never_asks_the_applications_wall_clock() -> None:
    found = []
    for entry in sorted(files("scheduler").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".py") and entry.name not in ALLOWED:
            for node in ast.walk(ast.parse(entry.read_text("utf-8"))):
                if isinstance(node, ast.Attribute) and ".".join(ast.unparse(node).split(".")[-2:]) in WALL:
                    found.append(f"{entry.name}:{node.lineno}: {ast.unparse(node)}")
    assert not found


def test_the_statements_ask_the_one_clock_of_the_schema() -> None:
    for entry in sorted(files("scheduler").joinpath("sql").iterdir(), key=lambda entry: entry.name):
        text = "\n".join(line for line in entry.read_text("utf-8").splitlines() if not line.startswith("--"))
        for other in ("now()", "current_timestamp", "statement_timestamp", "transaction_timestamp"):
            assert other not in text, f"{entry.name} decides by {other}"
        # They report the server's own clock.
        assert "clock_timestamp" not in text or entry.name in ("health.sql", "measure_write.sql"), entry.name
