"""What all tests have in common: those that run real processes or a real screen beside a clock get further chances."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.journal import store

AGAINST_THE_CLOCK = frozenset({"cli", "contracts", "exploits", "faults", "trial", "tui"})
"""Folders whose tests wait for other processes or for a screen. On a machine that does something else meanwhile, one in some
hundred of them may be late; a fault of the program fails every time."""
CHANCES = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give those tests their further chances."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in AGAINST_THE_CLOCK:
            item.add_marker(pytest.mark.flaky(reruns=CHANCES))


@pytest.fixture(scope="session", autouse=True)
def no_shipped_sessions() -> Iterator[None]:
    """Lists of sessions hold what a test made, not what this checkout comes with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "shipped_root", lambda: None)
        yield
