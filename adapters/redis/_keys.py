"""Where things lie: the key of a resource's mark, and keys of data in the same slot of a cluster."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from fencing._law import check_resources

MARK_PREFIX = b"fencing:{"
"""How every mark's key begins. No recorded command may name such a key."""

MARK_PATTERN = "fencing:{*}:mark*"
"""What ``SCAN`` looks for to find marks; :func:`resource_of` says which of those are."""

# Readable as it is; everything else, above all the braces and "%" itself, is percent-encoded, so that no two
# resources share a mark and no byte of a name ends a tag early (Redis Cluster specification, "Hash tags": from the
# first "{" to the first "}" after it, if there is something in between).
_PLAIN = "/:@!$&'()*+,;=-._~"
_HASH_TAG = re.compile(r"\{([^}]+)\}")


@lru_cache(maxsize=4096)
def _tagged(resource: str) -> tuple[str, str]:
    """The hash tag of a resource, encoded, and what tells it from others of the same tag ("" if the tag does)."""
    tag = _HASH_TAG.search(resource)
    if tag is None:
        return quote(resource, safe=_PLAIN), ""
    return quote(tag[1], safe=_PLAIN), quote(resource, safe=_PLAIN.replace(":", ""))


def mark_key(resource: str) -> str:
    """The key of the resource's mark."""
    tag, rest = _tagged(resource)
    return f"fencing:{{{tag}}}:mark:{rest}" if rest else f"fencing:{{{tag}}}:mark"


def resource_of(key: str) -> str | None:
    """The resource whose mark lies under the key; ``None`` for a key of something else."""
    match = _MARK_KEY.fullmatch(key)
    if match is None:
        return None
    resource = unquote(match[2] or match[1])
    return resource if mark_key(resource) == key else None


_MARK_KEY = re.compile(r"fencing:\{([^{}]+)\}:mark(?::(.+))?")


def redis_key(resource: str, name: str) -> str:
    """A key for data of ``resource`` that lies in the same slot of a cluster as the resource's mark.

    ``redis_key("cart/7", "items")`` is ``"{cart/7}:items"``. The resource's name may hold any character: those that
    could end the hash tag early are percent-encoded. A resource that has a hash tag in its own name (Redis Cluster
    specification: ``"{shop-3}/cart/7"``) shares the slot of all resources with that tag, so that one write may fence
    several of them. Raises ``TypeError`` for what is not text and ``ValueError`` for an empty or too long name.
    """
    (checked,) = check_resources((resource,))
    if not isinstance(name, str):
        raise TypeError(f"a key's name is a str, not {type(name).__name__} ({name!r})")
    if not name:
        raise ValueError(f"the name of a key of {resource!r} is empty; say what it holds, for example 'items'")
    tag, rest = _tagged(checked)
    return f"{{{tag}}}{rest}:{name}"
