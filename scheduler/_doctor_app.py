"""Whether an application and its scheduler's database fit: tasks that nobody knows, schedules that differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from fencing import Finding
from scheduler._schedule_look import list_schedules
from scheduler._schedules import Declared
from scheduler._sql import Run

MOST = 1_000
"""How many tasks with waiting jobs are looked at."""


def diagnose_app(run: Run, where: str, tasks: Collection[str], declared: Mapping[str, Declared]) -> Iterator[Finding]:
    """Compare what an application declares with what its database holds; yield one finding per check.

    Nothing here breaks a promise by itself: another application may know the task, another release may have the say.
    """
    waiting = [f"{task!r} in queue {queue!r}" for queue, task in run("waiting_tasks", most=MOST) if task not in tasks]
    yield _finding(
        "tasks of waiting jobs",
        where,
        waiting,
        "the application knows them all",
        "jobs wait for tasks that it does not know: ",
        "no worker of this application will ever run them",
        "import the modules that register them, or start the application that knows them; `fencing jobs cancel` ends "
        "jobs that nobody wants any more",
    )
    stored = list_schedules(run.connection, run.statements)
    unknown = [f"{one.name!r} (task {one.task!r})" for one in stored if one.task not in tasks]
    yield _finding(
        "tasks of schedules",
        where,
        unknown,
        "the application knows them all",
        "schedules make jobs of tasks that it does not know: ",
        "their occurrences become jobs that no worker of this application runs",
        "register the tasks, or `fencing schedules delete` what is no longer wanted",
    )
    # Where nothing is declared, somebody else's code does that. What a person put there needs no code.
    left = [
        repr(one.name) for one in stored if declared and one.release and one.task in tasks and one.name not in declared
    ]
    yield _finding(
        "schedules of earlier code",
        where,
        left,
        "none",
        "an application declared them, and this one does not: ",
        "they go on making jobs, which its workers run",
        "`fencing schedules delete` what is no longer wanted; one that other code declares may stay",
    )
    rules = list(declared.values())
    compared = run(
        "schedules_compare",
        names=[one.name for one in rules],
        definitions=[one.text for one in rules],
        number=0,
    )
    differing = [
        f"{name!r} ({'not stored' if new else 'stored otherwise'})" for name, new, same in compared if not same
    ]
    yield _finding(
        "declared schedules",
        where,
        differing,
        "stored as the application declares them",
        "not as the application declares them: ",
        "what is stored is what becomes due: a newer release or a person said so, or no worker has started since",
        "start a worker of this application or run `fencing schedules sync`; `fencing schedules show` tells who "
        "changed what",
    )


def _finding(check: str, where: str, wrong: list[str], well: str, message: str, breaks: str, remedy: str) -> Finding:
    if not wrong:
        return Finding(check, "ok", where, well)
    return Finding(check, "warning", where, message + _some(wrong), breaks, remedy)


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
