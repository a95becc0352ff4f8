"""The kill matrix: which planted bug was noticed by which suite, after how many examples and seconds.

``pytest tests/property/test_planted_bugs.py`` prints it at its end.
"""

from fencing.testing import Kill

_kills: list[Kill] = []


def noted(kill: Kill) -> Kill:
    """Keep it for the matrix."""
    _kills.append(kill)
    return kill


def lines() -> list[str]:
    """The matrix, a line for each bug and suite; nothing if no bug was planted in this run."""
    if not _kills:
        return []
    told = [
        (kill.bug.layer, kill.bug.name, kill.suite, str(kill.examples), f"{kill.seconds:.1f}", kill.by or "SURVIVED")
        for kill in _kills
    ]
    rows = [("layer", "bug", "suite", "examples", "seconds", "noticed by"), *told]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    shown = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5][:70]]) for row in rows
    ]
    bugs = {(kill.bug.layer, kill.bug.name) for kill in _kills}
    survived = sum(not kill.killed for kill in _kills)
    return [*shown, f"{len(bugs)} bugs, {len(_kills)} runs, {survived} survived"]
