"""Small files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.journal.whole_file import write_whole


def test_a_file_and_its_folder_are_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "layout.toml"
    for content in (b"first", b"second"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == ["layout.toml"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "layout.toml"
    path.mkdir()
    with pytest.raises(OSError, match=r"layout\.toml"):
        write_whole(path, b"text")
    assert list(tmp_path.iterdir()) == [path], "no temporary file"
