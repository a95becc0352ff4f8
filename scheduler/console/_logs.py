"""Log records of a worker or a relay as text for people, or as one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

FIELDS = ("job", "task", "queue", "attempt", "token", "owner")
"""What records about a job carry, see the reference of metrics and log fields."""


class JsonLines(logging.Formatter):
    """``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, the fields that the record has, and ``error``: the
    traceback, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        told.update({name: getattr(record, name) for name in FIELDS if hasattr(record, name)})
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def set_up_logging(level: str, style: str) -> None:
    """Send log records to standard error, as ``text`` or ``json``."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if style == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])
