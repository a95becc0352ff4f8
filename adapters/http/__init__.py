"""The HTTP adapter: a token travels with a request, and the service that gets it enforces it in its own transaction.

The client's side adds two fields to a request, ``Fencing-Token`` and ``Idempotency-Key``, and turns a refusal back into
the error that it is. The service's side reads them (:func:`fence_from`), passes the result to ``fenced_write()`` as
``token=``, and answers a refusal with a problem of its own (RFC 9457): 428, 412, 409, 503.
"""

from adapters.http._asgi import FenceMiddleware
from adapters.http._client import async_fencing_hooks, fenced, fencing_hooks
from adapters.http._fence import Fence, FenceFieldError, FenceMissingError, fence_from, fingerprint
from adapters.http._problem import Problem, problem_of
from adapters.http._wsgi import FenceWsgiMiddleware

__all__ = [
    "Fence",
    "FenceFieldError",
    "FenceMiddleware",
    "FenceMissingError",
    "FenceWsgiMiddleware",
    "Problem",
    "async_fencing_hooks",
    "fence_from",
    "fenced",
    "fencing_hooks",
    "fingerprint",
    "problem_of",
]
