"""Names of files and problems in the commands that output advises."""

from __future__ import annotations

import shlex

import pytest

from engine.report.text.shell import quoted


@pytest.mark.parametrize("name", ["softmax", "my kernel.cpp", "it's.py", "-dash.py", "--help", "./-a", "-a b.cu"])
def test_a_quoted_name_is_one_word_and_no_option(name: str) -> None:
    (word,) = shlex.split(quoted(name))
    assert not word.startswith("-")
    assert word.removeprefix("./") == name.removeprefix("./")
