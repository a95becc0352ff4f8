"""No log of refusals while a suite provokes them by the hundred: its story would drown in them."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from fencing._refusals import log


class Quiet:
    """While it is entered, what refusals log as warnings is dropped; what goes wrong with telling them is not."""

    def __enter__(self) -> Self:
        log.addFilter(self._passes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        log.removeFilter(self._passes)

    def _passes(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING
