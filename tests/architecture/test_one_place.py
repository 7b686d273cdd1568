"""A fact that several rooms need is written in one of them."""

from __future__ import annotations

import pytest
from architecture.source import ROOT, files


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("--unshare-all", "engine/sandbox/bubblewrap.py"),
        ("--cap-drop", "engine/sandbox/bubblewrap.py"),
        ("/etc/ld.so.cache", "engine/sandbox/bubblewrap.py"),
        ('".cu"', "engine/domain/dialect.py"),
        ('".cpp"', "engine/domain/dialect.py"),
    ],
)
def test_it_is_written_down_once(text: str, place: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in files() if text in path.read_text(encoding="utf-8")] == [place]


def test_only_the_composition_root_names_the_terminal_ui() -> None:
    """The engine opens it through the registration in ``espalier.py``, not through an import hidden from the linter."""
    engine = [path for path in files() if path.is_relative_to(ROOT / "engine")]
    assert not [path for path in engine if '"tui' in path.read_text(encoding="utf-8")]


def test_python_is_parsed_by_one_thread_at_a_time() -> None:
    """A runner's own process has one thread."""
    found = {str(path.relative_to(ROOT)) for path in files() if "ast.parse(" in path.read_text(encoding="utf-8")}
    assert found == {"engine/domain/python_syntax.py", "engine/trial/runner/modules.py"}
