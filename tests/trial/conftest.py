"""Fails the session where a test of the trial leaves a process behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from trial.ground import nothing_left_behind


@pytest.fixture(scope="session", autouse=True)
def _orderly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with nothing_left_behind(tmp_path_factory.mktemp("mark")):
        yield
