"""The kit that proves an adapter keeps the law (extra ``testing``)."""

from fencing.testing._memory import AsyncMemoryGuard, MemoryGuard, MemoryStore

__all__ = ["AsyncMemoryGuard", "MemoryGuard", "MemoryStore"]
