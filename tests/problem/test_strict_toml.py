"""Strict TOML: an error is one line with the key and the expected value."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.problem.files.strict_toml import TomlError, decode


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(gt=0)]
    factor: float | None = None


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str = ""
    parts: dict[str, list[Inner]] = {}
    names: tuple[str, ...] = ()


def test_a_valid_file_is_decoded() -> None:
    outer = decode('title = "x"\nnames = ["a"]\n[[parts.wing]]\nsize = 3\nfactor = 2\n', Outer)
    assert outer == Outer("x", {"wing": [Inner(3, 2.0)]}, ("a",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 3", "title: expected str, got int"),
        ("tittle = 'x'", "unknown key 'tittle': use names, parts, title"),
        ("names = ['a', 3]", "names.2: expected str, got int"),
        ("[[parts.wing]]\nfactor = 2", "parts.wing.1.size: required"),
        ("[[parts.wing]]\nsize = 2\n[[parts.tail]]\nsize = 0", "parts.tail.1.size: expected int >= 1"),
        ("[[parts.wing]]\nsize = 2\nfactor = 'x'", "parts.wing.1.factor: expected float, got str"),
        ("[parts.wing]\nsize = 2", "parts.wing: expected a list, got a table"),
        ("[[parts.wing]]\nsize = 2\nside = 1", "parts.wing.1: unknown key 'side': use factor, size"),
        ("parts = 1979-05-27", "parts: expected a table, got date"),
    ],
)
def test_an_error_names_the_key_and_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(TomlError) as error:
        decode(text, Outer)
    assert str(error.value) == message


@given(st.text(max_size=60))
def test_any_text_is_decoded_or_one_line(text: str) -> None:
    message = ""
    try:
        decode(text, Outer)
    except TomlError as error:
        message = str(error)
    assert "\n" not in message
