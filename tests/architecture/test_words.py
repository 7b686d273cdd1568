"""Retired phrases stay out of everything a person or a model reads: code, prompts, problems, tests and documents.

Journals keep the texts they were recorded with.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from architecture.source import ROOT

SKIPPED_FOLDERS = ("sessions/", "docs/pictures/", "tests/tui/__snapshots__/", "tests/golden/")
"""Recorded sessions, pictures, recorded terminals, golden journals."""
SKIPPED_NAMES = {"test_words.py", "test_names.py"}
SKIPPED_SUFFIXES = {".svg", ".png", ".gif", ".raw", ".jsonl", ".zip", ".gz"}
UNVERSIONED_FOLDERS = {".git", ".venv", "__pycache__", "build", "dist", "site", "sessions"}

RETIRED = {
    # what the program is, and its parts
    r"trains? a tree": "searches for faster GPU kernels, with you in control",
    r"talked into|cannot be fooled": "hard to game",
    r"terminal face|the face\b|face of the terminal": "terminal UI",
    r"first ports?": "naive port",
    r"null models?": "trivial model",
    r"bent (?:inputs?|operands?|values?|distributions?|cases?)|bends? (?:an |the )?inputs?": "perturbed inputs",
    r"unborne|borne out|bears? (?:\w+ ){0,2}out\b": "corroborated",
    r"idea sources?|source of ideas|sources of ideas": "proposer",
    r"correctness gates?|gate of correctness": "correctness check",
    r"(?<!speed\s)of light|reaches? light|light (?:bound|limit)": "of SOL",
    r"kernels right": "verified",
    r"what (?:the )?reference's own arithmetic errs": "reference error by precision class",
    r"the luckiest": "best measured",
    r"surroundings|interference": "telemetry, CPU contention",
    # what a session does
    r"brought nothing|brings nothing": "failed",
    r"could not be done": "failed",
    r"goes on once|put right": "resume with ... once fixed",
    r"is there already|there already is": "already exists",
    r"(?<!there\s)is no (?:mode|command|kernel|idea|session|problem|proposer|writer|number|workload|device)\b": "unknown ...",
    r"lists what there is|what there is": "for usage",
    r"ask with patience|with patience": "ask, then auto-approve after N s",
    r"takes? up again|took up again|taken up again": "reopens, resumes",
    r"lets? go of": "releases, frees",
    r"lay down|lays down|laid down": "close",
    r"put words on|puts words on": "add a note",
    r"in the same breath": "immediately",
    r"say nothing again": "do not repeat",
    r"believed in first": "default first",
    # how a thing is written
    r"orders? of chance|places? of chance|left to chance|by chance": "random",
    r"dear to \w+": "expensive to ...",
    r"by way of": "via",
    r"mend(?:s|ed|ing)?": "fix",
    r"what binds": "what limits, the bottleneck",
    r"is made good": "is fixed",
    r"in motion": "running",
    r"afresh|anew": "again",
    r"all the same": "nevertheless, still",
    r"looks? back": "review",
    r"what is known of": "what is known about",
    r"for ever": "forever, indefinitely",
}
"""A pattern, whole words, in any case, and what the field says instead."""

_GAP = r"(?:[ \t]|\n[ \t]*(?:#:?|//|\*|>|\|)?[ \t]*)"
"""Between two words of a phrase: a space, or the end of a line and the start of the next, in a comment too."""


def _alternatives(pattern: str) -> list[str]:
    """The parts of a pattern between its outermost bars: each by itself is found ten times as fast as all in one pattern."""
    return re.split(r"\|(?![^()]*\))", pattern)


_PATTERNS = [
    (re.compile(one.replace(" ", _GAP) + r"(?!\w)"), instead)
    for phrase, instead in RETIRED.items()
    for one in _alternatives(phrase)
]


def tracked() -> list[Path]:
    """Every text file of the checkout; of an unpacked source distribution, every file."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        names = [str(path) for path in paths if not UNVERSIONED_FOLDERS & set(path.parts)]
    return sorted(ROOT / name for name in names if _is_read(Path(name)))


def _is_read(name: Path) -> bool:
    inside = str(name).startswith(SKIPPED_FOLDERS)
    return not inside and name.name not in SKIPPED_NAMES and name.suffix not in SKIPPED_SUFFIXES


def text_of(path: Path) -> str:
    """The file's text; empty for a binary file or one that was deleted."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def hits(text: str) -> Iterator[tuple[int, str, str]]:
    """Each retired phrase in a text: its line, itself, and what replaces it."""
    lower = text.lower()
    for pattern, instead in _PATTERNS:
        for found in pattern.finditer(lower):
            start, end = found.span()
            if not (start and re.match(r"\w", lower[start - 1])):
                yield text.count("\n", 0, start) + 1, " ".join(text[start:end].split()), instead


def test_no_retired_phrase_is_in_any_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: '{phrase}' (now: {instead})"
        for path in tracked()
        for line, phrase, instead in hits(text_of(path))
    ]
    assert not found, f"{len(found)} retired phrases\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("k7 brought nothing.", "brought nothing"),
        ("The First Port of the reference", "First Port"),
        ("its own clock bears them out", "bears them out"),
        ("this was mended", "mended"),
        ("80 % of light", "of light"),
        ("'softmx' is no problem", "is no problem"),
        ("# which of them leads is left to\n    # chance", "left to # chance"),
    ],
)
def test_retired_phrases_are_recognised(text: str, phrase: str) -> None:
    assert [found for _, found, _ in hits(text)] == [phrase]


@pytest.mark.parametrize("text", ["80 % of the speed of light", "recommended", "an amendment", "surface"])
def test_other_words_are_left_alone(text: str) -> None:
    assert not list(hits(text))
