"""``python -m scheduler`` is the console script ``fencing``."""

from scheduler.console.cli import main

main()
