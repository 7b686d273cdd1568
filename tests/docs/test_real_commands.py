"""The pages whose commands search, measure or install in earnest: real compiler, real judge, real sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import PAGES, blocks, name
from docs.shell import Shell

SHORT_SEARCH = "[run]\nrounds = 1\nideas = 1\nbranch = 2\n"
"""For searches whose page does not say how long they are."""
PAGES_WITH_SLOW = [page for page in PAGES if any(block.runs and "slow" in block.note for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES_WITH_SLOW, ids=name)
def test_the_slow_commands_of_a_page_run(shell: Shell, page: Path) -> None:
    (shell.here / "espalier.toml").write_text(SHORT_SEARCH, encoding="utf-8")
    for block in blocks(page):
        if "file" in block.note or block.runs:
            shell.run(block)
