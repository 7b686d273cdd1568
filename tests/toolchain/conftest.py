"""Fixtures of the sandbox, which compilers run in."""

from support.sandboxes import bubblewrap, cache_root, confinement

__all__ = ["bubblewrap", "cache_root", "confinement"]
