"""Makes the caches of a drawn line when they are used: Textual's lines make seven each, and use two or three.

Reported as for upstream (Textual 8.2.8, ``Strip.__init__``). Every line of every widget that is drawn is a ``Strip``. Its
caches were a third of all objects that a full garbage collection looks at, and their number decides how often it looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.segment import Segment
from textual.cache import FIFOCache
from textual.strip import Strip

_usual = Strip([])
_SIZES: dict[str, int] = {
    name: cache._maxsize for name in Strip.__slots__ if isinstance(cache := getattr(_usual, name), FIFOCache)
}
"""Cache of a line → how much it keeps."""


def lighten_strips() -> None:
    """Make every line of this process light, those of Textual's own widgets included. Calling it again changes nothing."""
    Strip.__init__ = _init  # type: ignore[method-assign,assignment]  # Textual has no seam here
    Strip.__getattr__ = _make_cache  # type: ignore[attr-defined]  # called for a slot without a value


def _init(strip: Strip, segments: Iterable[Segment], cell_length: int | None = None) -> None:
    strip._segments = list(segments)
    strip._cell_length = cell_length
    strip._render_cache = strip._link_ids = strip._cell_count = None


def _make_cache(strip: Strip, name: str) -> FIFOCache[Any, Any]:
    if name not in _SIZES:
        raise AttributeError(f"{type(strip).__name__!r} object has no attribute {name!r}")
    cache: FIFOCache[Any, Any] = FIFOCache(_SIZES[name])
    setattr(strip, name, cache)
    return cache
