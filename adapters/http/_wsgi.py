"""The service's side for WSGI (Flask, Django, Bottle)."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, TypeAlias

from adapters.http._problem import problem_of
from fencing.errors import FencingError

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]


class FenceWsgiMiddleware:
    """Answers a refusal that the application lets through with its problem (see :func:`problem_of`).

    An error after the first bytes of the answer goes on as it is. Flask turns every error into a 500 of its own unless
    it is told otherwise: there, register ``problem_of`` as the error handler of ``FencingError`` instead.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        answer: Iterable[bytes] | None = None
        try:
            answer = self._app(environ, start_response)
            if isinstance(answer, list | tuple):
                return answer
            rest = iter(answer)
            first = list(itertools.islice(rest, 1))  # a generator raises here what it would have raised later
        except FencingError as exc:
            if answer is not None:
                _close(answer)
            problem = problem_of(exc)
            if problem is None:
                raise
            status = f"{problem.status} {HTTPStatus(problem.status).phrase}"
            # With exc_info, so that headers that the application has set, and that were not sent yet, are replaced.
            start_response(status, list(problem.headers.items()), sys.exc_info())
            return [problem.body]
        return _Answer(answer, itertools.chain(first, rest))


class _Answer:
    """The application's answer, whose first part was asked for already."""

    def __init__(self, answer: Iterable[bytes], parts: Iterator[bytes]) -> None:
        self._answer = answer
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def close(self) -> None:
        _close(self._answer)


def _close(answer: Iterable[bytes]) -> None:
    if hasattr(answer, "close"):
        answer.close()
