"""A folder, a home and a session to run the commands of a page in."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(tmp_path, monkeypatch)
    made.prepare()
    return made
