"""How a seed is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sessions

from engine.domain.errors import KernelCodeError
from engine.session.seeds import read_seed


def test_a_file_is_named_from_the_home_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.cpp").write_text(sessions.source("mine", "time_us = 90"))
    assert read_seed("~/mine.cpp").kernel.name == "mine.cpp"
    with pytest.raises(KernelCodeError, match="no kernel file"):
        read_seed("~nobody-of-this-name/mine.cpp")
