"""Paths in the fields of forms."""

from __future__ import annotations

import pytest

from tui.typed_paths import typed_path


@pytest.mark.parametrize("typed", ["/a/my kernel.cpp", r"/a/my\ kernel.cpp", "'/a/my kernel.cpp'", ' "/a/my kernel.cpp"\t'])
def test_a_path_is_typed_with_or_without_quotes_and_backslashes(typed: str) -> None:
    assert typed_path(typed) == "/a/my kernel.cpp"


@pytest.mark.parametrize("typed", ["", "'", "it's", "'a\"", "softmax"])
def test_other_quotes_belong_to_the_name(typed: str) -> None:
    assert typed_path(typed) == typed
