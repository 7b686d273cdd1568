"""Closes the windows that tests open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.window import Window


@pytest.fixture
def windows() -> Iterator[list[Window]]:
    """Windows added to this list are closed after the test."""
    made: list[Window] = []
    yield made
    for one in made:
        one.close()
