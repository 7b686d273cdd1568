"""Fixtures of the sandbox in which compilers run."""

from support.sandboxes import bubblewrap, cache_root, confinement

__all__ = ["bubblewrap", "cache_root", "confinement"]
