"""Windows that tests open are closed, whatever the program in them does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.window import Window


@pytest.fixture
def windows() -> Iterator[list[Window]]:
    """What a test puts here ends with it."""
    made: list[Window] = []
    yield made
    for one in made:
        one.close()
