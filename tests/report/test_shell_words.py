"""Names of files and problems in the commands that output advises."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support import sessions

from engine.journal import store
from engine.report.text.shell import quoted, shell_name


@pytest.mark.parametrize("name", ["softmax", "my kernel.cpp", "it's.py", "-dash.py", "--help", "./-a", "-a b.cu"])
def test_a_quoted_name_is_one_word_and_no_option(name: str) -> None:
    (word,) = shlex.split(quoted(name))
    assert not word.startswith("-")
    assert word.removeprefix("./") == name.removeprefix("./")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred'\\", "ideographic\u3000space", "no\u00a0break", os.fsdecode(b"caf\xe9")])
def test_a_name_that_is_not_printable_is_printed_as_bash_reads_it(name: str) -> None:
    word = quoted(name)
    assert word.isprintable()
    read = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout
    assert read == os.fsencode(name)


@pytest.mark.parametrize("name", ["-1", "--help", "two words", "-a b"])
def test_the_name_of_a_session_is_found_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own = store.sessions_root() / name
    sessions.whole(own)
    monkeypatch.chdir(elsewhere)
    (word,) = shlex.split(shell_name(own))
    assert not word.startswith("-")
    assert store.resolve(word) == own
    shutil.move(own, elsewhere / name)
    (word,) = shlex.split(shell_name(Path(name)))
    assert not word.startswith("-")
    assert store.resolve(word).resolve() == elsewhere / name
