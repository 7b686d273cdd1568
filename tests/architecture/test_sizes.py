"""Modules are small."""

from __future__ import annotations

import statistics

from architecture.source import ROOT, files

LONGEST = 400


def lines_by_module() -> dict[str, int]:
    return {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files()}


def test_no_module_is_too_long() -> None:
    too_long = {name: lines for name, lines in lines_by_module().items() if lines > LONGEST}
    assert not too_long


def test_the_median_module_is_neither_tiny_nor_long() -> None:
    lengths = [lines for name, lines in lines_by_module().items() if not name.endswith("__init__.py")]
    assert 100 <= statistics.median(lengths) <= 250
