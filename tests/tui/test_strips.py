"""A light line is Textual's line, whose caches are made when they are used."""

from __future__ import annotations

import gc
import inspect
from importlib.util import find_spec, module_from_spec
from typing import Any

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.cache import FIFOCache
from textual.strip import Strip

from tui.strips import lighten_strips

_SEGMENTS = [Segment("ab", Style(bold=True)), Segment("cd")]


def usual_strip() -> Any:
    """Textual's class as it is installed, whatever this process has changed."""
    spec = find_spec("textual.strip")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Strip


def values(strip: Any) -> dict[str, object]:
    """What its slots hold; a cache is described by its size."""
    found = {name: getattr(strip, name) for name in type(strip).__slots__}
    return {name: ("cache", one._maxsize) if isinstance(one, FIFOCache) else one for name, one in found.items()}


def test_a_light_line_holds_what_the_usual_one_does() -> None:
    lighten_strips()
    usual = usual_strip()
    assert values(Strip(iter(_SEGMENTS), 4)) == values(usual(iter(_SEGMENTS), 4))
    assert values(Strip(_SEGMENTS)) == values(usual(_SEGMENTS))
    assert inspect.signature(Strip) == inspect.signature(usual)


def test_a_light_line_makes_a_cache_when_it_is_used_and_keeps_it() -> None:
    lighten_strips()
    strip = Strip(_SEGMENTS, 4)
    assert not any(isinstance(one, FIFOCache) for one in gc.get_referents(strip))
    assert strip.crop(1, 3) is strip.crop(1, 3)
    assert strip.crop(1, 3).text == "bc"
    assert sum(isinstance(one, FIFOCache) for one in gc.get_referents(strip)) == 1


def test_what_a_line_lacks_is_told() -> None:
    lighten_strips()
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = Strip(_SEGMENTS).colour  # type: ignore[attr-defined]
