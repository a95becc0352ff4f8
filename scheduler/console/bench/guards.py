"""A fenced write against the same write unfenced."""

from __future__ import annotations

from scheduler.console.bench._databases import BENCHES as DATABASES
from scheduler.console.bench._frame import Bench
from scheduler.console.bench._redis import BENCHES as REDIS
from scheduler.console.bench._sql import BENCHES as SQL

BENCHES: list[Bench] = [*SQL, *DATABASES, *REDIS]
