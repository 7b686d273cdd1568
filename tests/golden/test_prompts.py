"""The prompts of every shipped problem on an H200 and on a CPU: read by people, compared here. See ``make_prompts``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from golden import make_prompts

from engine.ideas.prompts.templates import fenced

PROMPTS = dict(make_prompts.prompts())


def test_every_golden_prompt_is_made() -> None:
    assert {path.name for path in make_prompts.GOLDEN.glob("*.md")} == set(PROMPTS)


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_a_prompt_is_the_golden_one(name: str) -> None:
    assert PROMPTS[name] == (make_prompts.GOLDEN / name).read_text(encoding="utf-8"), "read it, then run make_prompts.py"


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_nothing_stands_in_a_prompt_twice(name: str) -> None:
    text = PROMPTS[name]
    fences = [match[0] for match in re.finditer(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if len(match[1]) > 80]
    assert len(fences) == len(set(fences))
    prose = re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in prose.splitlines() if len(line) > 60 and not line.startswith("- ")]
    assert len(lines) == len(set(lines)), [line for line in lines if lines.count(line) > 1][:2]


def test_fences_close(tmp_path: Path) -> None:
    assert fenced("a\n```\nb").startswith("````")
    for text in PROMPTS.values():
        assert len(re.findall(r"^```", text, re.MULTILINE)) % 2 == 0
