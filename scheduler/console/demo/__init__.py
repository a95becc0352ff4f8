"""``fencing demo``: one paused worker, refused everywhere, on real servers.

``shop.py`` is the application that it runs, and an example of how to write one; ``careless.py`` is the same without
guards. What is heavy is imported when the command runs.
"""

from scheduler.console.demo._command import demo

__all__ = ["demo"]
