"""Names in a stranger's session stay on one line and stay text: on the screen of a shell, in reports and in exported code."""

from __future__ import annotations

import ast
import json
import random
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.program import Call

from engine.domain.errors import printable
from engine.report.text.lines import file_stem

SHIPPED = Path(__file__).parents[2] / "sessions"
PIECES = (
    "\n", "\r\n", "\r", "\t", "\x00", "\x07", "\x1b[2J", "\x1b]0;title\x07", "\x7f", "\x85", "\x9b31m", "\v", "\f",
    "\u2028", "\u2029", "\u200b", "\u202e", "\u2066", "\ufeff", "*/", "'''", '"""', "\\", "#{x}", "<script>", "</style>",
    "\nraise SystemExit('ran')\n", "\n#error ran\n", "`touch ran`", "$(touch ran)", "; touch ran", "../../", "é", "x" * 300,
)  # fmt: skip
CONTROLS = "\x7f\x85\x9b\u2028\u2029\u202e\u2066"
FREE = {"title", "rationale", "note", "reason", "expected", "detail", "category", "risks", "author", "text", "policy"}
"""Fields of a journal that hold words."""


def _spoiled(value: Any, dice: random.Random, key: str = "") -> Any:
    """The value with hostile pieces in every field of words."""
    if isinstance(value, dict):
        inner = {k: _spoiled(v, dice, k) for k, v in value.items()}
        if "prompt" not in inner and isinstance(inner.get("name"), str) and "source" in inner:
            inner["name"] = _with_pieces(inner["name"], dice)
        return inner
    if isinstance(value, list):
        return [_spoiled(v, dice, key) for v in value]
    return _with_pieces(value, dice) if isinstance(value, str) and key in FREE else value


def _with_pieces(text: str, dice: random.Random) -> str:
    return dice.choice(PIECES) + text + "".join(dice.choices(PIECES, k=4))


def _without_fixed(line: str, dice: random.Random) -> str:
    entry = json.loads(line)
    data = _spoiled(entry["data"], dice)
    if entry["kind"] == "session.opened":
        data["problem"]["name"] = f"../../p\n{dice.choice(PIECES)}"
        data["problem"]["title"] = _with_pieces("title", dice)
    if entry["kind"] == "session.prepared":
        data["device"]["name"] = _with_pieces(data["device"]["name"], dice)
    return json.dumps({**entry, "data": data})


@pytest.fixture(params=[0, 1, 2])
def hostile(request: pytest.FixtureRequest, home: Path) -> Iterator[Path]:
    """A shipped session with hostile names, under a hostile name of its own."""
    dice = random.Random(request.param)
    folder = home / "sessions" / "na me"
    shutil.copytree(SHIPPED / "softmax", folder)
    journal = folder / "journal.jsonl"
    journal.write_text("".join(f"{_without_fixed(line, dice)}\n" for line in journal.read_text().splitlines()))
    return folder


def _is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.slow
def test_listings_are_printable(hostile: Path, espalier: Call) -> None:
    kernels = [row["kernel"] for row in espalier("kernel", "list", hostile, "--json").json()["kernels"]]
    rows = espalier("kernel", "list", hostile).out
    assert all(sum(f"{kernel} " in line for line in rows.splitlines()) >= 1 for kernel in kernels)
    shown = [("kernel", "show", hostile, kernel) for kernel in (kernels[1], kernels[-1])]
    calls = [
        *shown, ("session", "list"), ("session", "show", hostile), ("kernel", "list", hostile), ("bank",),
        ("kernel", "list", hostile, "--verified"), ("idea", "list", hostile), ("idea", "predictions", hostile),
        ("replay", hostile, "--headless"), ("replay", hostile, "--headless", "--story"), ("model", "usage", hostile),
        ("model", "prompts", hostile),
    ]  # fmt: skip
    for call in calls:
        found = espalier(*call)
        assert found.status == 0, (call, found.err)
        for text in (found.out, found.err):
            assert _is_clean(text), (call, [line for line in text.split("\n") if not line.isprintable()][:3])


def test_json_on_a_terminal_holds_no_control_characters(hostile: Path, espalier: Call) -> None:
    """Those beyond ASCII's are valid in JSON, and control a terminal nevertheless."""
    for call in (("session", "show", hostile), ("kernel", "list", hostile), ("idea", "list", hostile)):
        found = espalier(*call, "--json")
        assert not {*CONTROLS} & {*found.out}, call
        assert found.json()
    assert {*CONTROLS} & {*json.dumps(espalier("idea", "list", hostile, "--json").json(), ensure_ascii=False)}


@pytest.mark.slow
def test_a_report_is_printable_and_holds_no_markup_of_a_name(hostile: Path, espalier: Call, tmp_path: Path) -> None:
    for name in ("x.html", "x.md"):
        found = espalier("export", hostile, "--format", "report", "--output", tmp_path / name)
        assert found.status == 0, found.err
        text = (tmp_path / name).read_text(encoding="utf-8").replace("\t", " ")
        assert _is_clean(text), [line[:300] for line in text.split("\n") if not line.isprintable()][:3]
    assert espalier("export", SHIPPED / "softmax", "--format", "report", "--output", tmp_path / "shipped.html").status == 0
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    shipped = (tmp_path / "shipped.html").read_text(encoding="utf-8")
    for mark in ("<script", "</style"):
        assert page.count(mark) == shipped.count(mark)


def test_an_exported_module_holds_no_code_of_a_name(
    hostile: Path, espalier: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a" / "b" / "c"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    found = espalier("export", hostile, "--format", "module")
    assert found.status == 0, found.err
    files = list(tmp_path.rglob("*.py"))
    assert all(path.parent == place for path in files)
    for path in files:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        assert not any(isinstance(node, ast.Raise) and "ran" in ast.unparse(node) for node in tree.body)
        comments = [line for line in text.split("\n") if line.startswith("#")]
        assert all(line.isprintable() for line in comments)


@pytest.mark.parametrize("seed", range(40))
def test_a_file_is_named_in_the_working_folder(seed: int) -> None:
    stem = file_stem("".join(random.Random(seed).choices(PIECES, k=6)))
    assert stem.isprintable()
    assert Path(stem).name == stem
    assert not stem.startswith(("-", "."))
    assert len(stem) <= 120
    assert shlex.quote(stem).strip("'") == stem


def test_printable_text_stays_as_it_is() -> None:
    assert printable("µs × 3 → é") == "µs × 3 → é"


def test_wide_and_unbreakable_spaces_are_spaces() -> None:
    assert printable("5\u00a0% 行列\u3000積\x07") == "5 % 行列 積?"
