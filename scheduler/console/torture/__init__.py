"""``fencing torture``: the whole of it under faults, on real servers, judged by the checker of histories."""

from scheduler.console.torture._command import torture

__all__ = ["torture"]
