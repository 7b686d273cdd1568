"""A module's error as the engineer reads it, however long."""

from __future__ import annotations

import pytest

from engine.domain.errors import head_and_tail
from engine.trial.runner.runner import _error_text


def text_of(error: Exception) -> str:
    with pytest.raises(type(error)) as caught:
        raise error
    return _error_text(caught.value)


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    found = text_of(ValueError("first words " + "x" * 5_000_000 + " last words")).rstrip()
    assert len(found) < 5000
    assert "ValueError: first words x" in found.splitlines()[-1]
    assert found.endswith("x last words")
    assert "characters left out" in found


def test_a_message_of_long_lines_ends_with_its_first_ones() -> None:
    found = text_of(RuntimeError("\n".join(letter * 1_000_000 for letter in "abcde")))
    assert len(found) < 5000
    assert found.splitlines()[-1].startswith("RuntimeError: aaa")


def test_a_short_text_is_left_alone() -> None:
    assert head_and_tail("short", 5) == "short"
    assert head_and_tail("0123456789", 4) == "01 … 6 characters left out … 89"
