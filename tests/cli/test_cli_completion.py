"""Shell completion: what each kind of word completes to, through the program as a shell calls it, and through bash itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.program import ROOT, Call, environment

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(home: Path) -> Complete:
    """The words that complete the last one, as bash asks for them."""

    def ask(*words: str) -> list[str]:
        asked = {
            "_ESPALIER_COMPLETE": "bash_complete",
            "COMP_WORDS": "\n".join(["espalier", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run(
            [sys.executable, "-m", "espalier"], env=environment(home, **asked), capture_output=True, text=True, timeout=30,
            check=False, cwd=home.parent,
        )  # fmt: skip
        assert done.stderr == ""
        return [row.partition(",")[2] for row in done.stdout.splitlines() if row]

    return ask


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("ker",), ["kernel"]),
        (("kernel", "re"), ["reopen", "remeasure"]),
        (("run", "soft"), ["softmax"]),
        (("run", "softmax", "--base"), ["--base-url", "--baseline", "--baselines"]),
        (("run", "softmax", "--baseline", "compile"), ["compile", "compile_max"]),
        (("run", "softmax", "--baselines", "eager,comp"), ["eager,compile", "eager,compile_max"]),
        (("session", "show", "scr"), ["scripted"]),
        (("replay", "scr"), ["scripted"]),
        (("kernel", "show", "scripted", "k1"), ["k1", "k10"]),
        (("kernel", "prune", "scripted", "k3"), ["k3"]),
        (("kernel", "race", "scripted", "k2", "--against", "k4"), ["k4"]),
        (("idea", "approve", "scripted", "i1", "i2"), ["i2"]),
        (("session", "note", "scripted", "text", "--on", "r"), ["r0", "r1", "r2", "r3"]),
        (("kernel", "seed", "scripted", "scripted:k3"), ["scripted:k3"]),
        (("export", "scripted", "--format", "b"), ["bundle"]),
        (("completion", "z"), ["zsh"]),
    ],
)
def test_words_complete(complete: Complete, recorded: Path, words: tuple[str, ...], found: list[str]) -> None:
    assert complete(*words) == found


@pytest.mark.slow
def test_a_session_that_cannot_be_read_completes_to_nothing(complete: Complete, recorded: Path) -> None:
    (recorded / "journal.jsonl").write_text("nothing of the kind\n{}\n")
    assert complete("kernel", "show", "scripted", "k") == []
    assert complete("kernel", "show", "nowhere", "k") == []


@pytest.mark.slow
def test_completing_ignores_a_faulty_configuration(complete: Complete, home: Path, recorded: Path) -> None:
    (home / "config").mkdir()
    (home / "config" / "config.toml").write_text("[run\n")
    assert complete("session", "show", "scr") == ["scripted"]


@pytest.mark.slow
def test_it_answers_before_somebody_waits(complete: Complete, recorded: Path) -> None:
    complete("ker")
    began = time.monotonic()
    complete("kernel", "show", "scripted", "k")
    assert time.monotonic() - began < 5, "a shared machine is slow, importing torch is slower"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(espalier: Call, shell: str) -> None:
    result = espalier("completion", shell)
    assert result.status == 0
    assert f"_ESPALIER_COMPLETE={shell}_complete" in result.out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_script(home: Path, recorded: Path, tmp_path: Path) -> None:
    program = tmp_path / "espalier"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m espalier "$@"\n')
    program.chmod(0o755)
    script = """
    eval "$(espalier completion bash)"
    COMP_WORDS=(espalier kernel show scripted k1); COMP_CWORD=4; COMPREPLY=()
    $(complete -p espalier | sed 's/.*-F \\([^ ]*\\) .*/\\1/') espalier k1 scripted
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    env = {**environment(home), "PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["k1", "k10"], done.stderr
