"""Which guard stands for which target: entry points of the group ``fencing.guards``.

An entry point's name is the top-level module of a class in the target's MRO (``sqlalchemy``, ``psycopg``, ``redis``);
its value is a function ``guard_for(target)``. So an adapter, and its driver, is imported only once somebody writes
through it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencing._ports import AsyncGuard, Guard

if TYPE_CHECKING:
    from typing_extensions import TypeIs

GROUP = "fencing.guards"
_OWN_DISTRIBUTION = "fencing-toolkit"
_OWN_PACKAGES = ("scheduler", "adapters")

_lock = threading.Lock()
_factories: dict[str, Callable[[Any], Any]] = {}
_by_type: dict[type, Callable[[Any], Any]] = {}
_async_types: dict[type, bool] = {}
_entry_points: dict[str, importlib.metadata.EntryPoint] | None = None


def guard_for(target: Any) -> Guard[Any] | AsyncGuard[Any]:
    """Return the guard of ``target``: itself if it is one, else what the adapter of its library makes of it.

    Raises ``TypeError`` for a target that no installed adapter knows.
    """
    # By type: an isinstance() of a protocol costs as much as a round trip to a database (Python 3.11).
    factory = _by_type.get(type(target))
    if factory is None:
        factory = _itself if isinstance(target, Guard | AsyncGuard) else _find(target)
        _by_type[type(target)] = factory
    guard: Guard[Any] | AsyncGuard[Any] = factory(target)
    return guard


def is_async(guard: Guard[Any] | AsyncGuard[Any]) -> TypeIs[AsyncGuard[Any]]:
    """Whether the guard is one for asyncio. Looked at once for each type, as in :func:`guard_for`."""
    known = _async_types.get(type(guard))
    if known is None:
        known = _async_types[type(guard)] = isinstance(guard, AsyncGuard)
    return known


def _itself(target: Any) -> Any:
    return target


def _find(target: Any) -> Callable[[Any], Any]:
    known = _load_entry_points()
    for base in type(target).__mro__:
        name = base.__module__.partition(".")[0]
        if name in known:
            with _lock:
                if name not in _factories:
                    _factories[name] = known[name].load()
                return _factories[name]
    raise TypeError(
        f"no guard knows how to fence a {type(target).__module__}.{type(target).__qualname__}; "
        f"known libraries: {', '.join(sorted(known)) or 'none'}. "
        "Pass a connection, session or client of one of them, or a Guard"
    )


def _load_entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    global _entry_points
    if _entry_points is None:
        check_packages()
        _entry_points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    return _entry_points


def check_packages() -> None:
    """Raise ``ImportError`` if another distribution or a user's own folder stands where our packages should be.

    Other distributions own the names ``scheduler`` and ``adapters`` on the package index, and they are common names
    for folders. Looked at once, when the first target is resolved and by the console: it reads every installed
    distribution's file list.
    """
    owners = importlib.metadata.packages_distributions()
    for package in _OWN_PACKAGES:
        others = sorted(set(owners.get(package, [])) - {_OWN_DISTRIBUTION})
        if others:
            raise ImportError(
                f"the package {package!r} belongs to both {_OWN_DISTRIBUTION} and {', '.join(others)}, "
                "which overwrite each other's "
                f"files: uninstall {', '.join(others)} and reinstall {_OWN_DISTRIBUTION}, "
                "or use an environment of its own"
            )
    ours = Path(__file__).resolve().parent.parent
    for package in _OWN_PACKAGES:
        spec = importlib.util.find_spec(package)
        places = [Path(place).resolve().parent for place in (spec.submodule_search_locations or [])] if spec else []
        if places and ours not in places:
            a_copy = (places[0] / "fencing" / Path(__file__).name).exists()
            raise ImportError(
                f"the package {package!r} of {_OWN_DISTRIBUTION} is shadowed by {places[0] / package}: "
                + (
                    f"that is another copy of {_OWN_DISTRIBUTION} than the installed one; work in another folder, "
                    f"or install that copy with pip install -e {places[0]}"
                    if a_copy
                    else "rename that folder or take its parent off sys.path"
                )
            )
