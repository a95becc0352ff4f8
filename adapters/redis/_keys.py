"""Where things lie: the key of a resource's mark, and keys of data in the same slot of a cluster."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from fencing._law import check_resources

MARK_PREFIX = b"fencing:{"
"""How every mark's key begins. No recorded command may name such a key."""

# Readable as it is; everything else, above all the braces and "%" itself, is percent-encoded, so that no two
# resources share a tag and no byte of a name ends it early (Redis Cluster specification, "Hash tags": from the
# first "{" to the first "}").
_PLAIN = "/:@!$&'()*+,;=-._~"


@lru_cache(maxsize=4096)
def _tag(resource: str) -> str:
    return quote(resource, safe=_PLAIN)


def mark_key(resource: str) -> str:
    """The key of the resource's mark."""
    return f"fencing:{{{_tag(resource)}}}:mark"


def redis_key(resource: str, name: str) -> str:
    """A key for data of ``resource`` that lies in the same slot of a cluster as the resource's mark.

    ``redis_key("cart/7", "items")`` is ``"{cart/7}:items"``. The resource's name may hold any character: those that
    could end the hash tag early are percent-encoded. Raises ``TypeError`` for what is not text and ``ValueError``
    for an empty or too long name.
    """
    (checked,) = check_resources((resource,))
    if not isinstance(name, str):
        raise TypeError(f"a key's name is a str, not {type(name).__name__} ({name!r})")
    if not name:
        raise ValueError(f"the name of a key of {resource!r} is empty; say what it holds, for example 'items'")
    return f"{{{_tag(checked)}}}:{name}"
