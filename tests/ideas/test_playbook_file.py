"""Reading playbook.toml: valid files are read completely, errors name file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.domain.errors import ProposerError
from engine.domain.model import Dialect
from engine.ideas.playbook_file import ROOT, PlaybookFile, read_playbook
from engine.problem.catalog import problems_root, shipped_names

CPP = '// @tune BLOCK = 1, 2\nextern "C" void launch(const float* x, float* out, void* workspace) {}\n'
CUDA = '// @launch k(x, out) grid(1) block(32)\nextern "C" __global__ void k(const float* x, float* out) {}\n'

GOOD = """
[root]
cpp = ["naive.cpp"]

[[idea]]
key = "wide"
title = "Wider loads"
category = "memory access"
rationale = \"\"\"
Two lines
of words.\"\"\"
predicted = { cpp = 1.5 }
cpp = ["wide.cpp", "wider.cpp"]
cuda = ["wide.cu"]

[[idea]]
key = "wider"
title = "Wider still"
category = "occupancy"
rationale = "More of it."
after = ["wide", "root"]
cpp = ["wider.cpp"]
"""


def write(folder: Path, toml: str) -> Path:
    playbook = folder / "playbook"
    playbook.mkdir(parents=True)
    (playbook / "playbook.toml").write_text(toml)
    for name in ("naive.cpp", "wide.cpp", "wider.cpp"):
        (playbook / name).write_text(CPP + f"// {name}\n")
    (playbook / "wide.cu").write_text(CUDA)
    (playbook / "bad.cpp").write_text("// @tune BLOCK = many\nvoid launch() {}\n")
    (playbook / "empty.cpp").write_text("")
    (folder / "private.cpp").write_text(CPP)
    (playbook / "linked.cpp").symlink_to(folder / "private.cpp")
    return folder


def test_a_playbook_is_read_completely(tmp_path: Path) -> None:
    written = read_playbook(write(tmp_path, GOOD))
    assert [s.kernel.name for s in written.root[Dialect.CPP]] == ["naive.cpp"]
    wide, wider = written.ideas
    assert wide.text(Dialect.CPP).predicted == 1.5
    assert wide.text(Dialect.CUDA).predicted is None
    assert wide.rationale == "Two lines of words."
    assert {d: [s.kernel.name for s in s_] for d, s_ in wide.implementations.items()} == {
        Dialect.CPP: ["wide.cpp", "wider.cpp"],
        Dialect.CUDA: ["wide.cu"],
    }
    assert wide.implementations[Dialect.CPP][0].tunables[0].values == (1, 2)
    assert wider.after == ("wide", "root")


def test_a_problem_without_a_playbook_has_an_empty_one(tmp_path: Path) -> None:
    assert read_playbook(tmp_path) == PlaybookFile()


def _changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[root", "playbook.toml, not valid TOML"),
        (GOOD + "[extra]\n", "playbook.toml, unknown key 'extra': use idea, root"),
        (_changed("[root]\ncpp", "[root]\nc"), "root: unknown key 'c': use cpp, cuda, python"),
        (_changed('["naive.cpp"]', '"naive.cpp"'), "root.cpp: expected a list, got str"),
        (_changed('["naive.cpp"]', '["none.cpp"]'), "root, cpp: none.cpp: no kernel file"),
        (_changed('["naive.cpp"]', '["wide.cu"]'), "root, cpp: wide.cu is cuda, not cpp"),
        (_changed('["naive.cpp"]', '["../naive.cpp"]'), "is outside the playbook's folder"),
        (_changed('["naive.cpp"]', '["/etc/naive.cpp"]'), "is outside the playbook's folder"),
        (_changed('["naive.cpp"]', '["linked.cpp"]'), "is outside the playbook's folder"),
        (_changed('["naive.cpp"]', '["bad.cpp"]'), "bad.cpp: line 1, column"),
        (_changed('["naive.cpp"]', '["empty.cpp"]'), "empty.cpp is empty"),
        (_changed('[root]\ncpp = ["naive.cpp"]', "root = 3"), "root: expected a table, got int"),
        (_changed('key = "wide"\n', ""), "idea 1, key: required"),
        (_changed('key = "wide"', 'key = "root"'), "idea 'root': the key must be unique"),
        (_changed('key = "wider"', 'key = "wide"'), "idea 'wide': the key must be unique"),
        (_changed('key = "wider"', 'key = "tune:k1"'), "idea 'tune:k1': the key must be unique, without a colon"),
        (_changed('title = "Wider loads"', 'title = ""'), "idea 'wide', title: expected str of length >= 1"),
        (_changed('"memory access"', '"memory"'), "idea 'wide', category: unknown category 'memory': use one of memory access"),
        (_changed('rationale = "More of it."', "rationale = 4"), "idea 'wider', rationale: expected str, got int"),
        (_changed("cpp = 1.5", "cpp = -1"), "idea 'wide', predicted.cpp: expected float > 0.0"),
        (_changed("cpp = 1.5", "cpp = true"), "idea 'wide', predicted.cpp: expected float, got bool"),
        (_changed("cpp = 1.5", 'cpp = "1.5"'), "idea 'wide', predicted.cpp: expected float, got str"),
        (_changed("cpp = 1.5", "cpu = 1.5"), "idea 'wide', predicted: unknown key 'cpu'"),
        (_changed("{ cpp = 1.5 }", "1.5"), "idea 'wide', predicted: expected a table, got float"),
        (_changed('["wide", "root"]', '["narrow"]'), "idea 'wider', after: unknown idea 'narrow'"),
        (_changed('["wide", "root"]', '["wider"]'), "idea 'wider', after: an idea cannot build on itself"),
        (_changed('cpp = ["wide.cpp", "wider.cpp"]\ncuda = ["wide.cu"]\n', ""), "idea 'wide': no implementation"),
        (_changed("predicted = ", "expected = "), "idea 'wide': unknown key 'expected'"),
        ("idea = 3", "idea: expected a list, got int"),
        ("idea = [3]", "idea.1: expected a table, got int"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, toml: str, words: str) -> None:
    with pytest.raises(ProposerError, match=words) as caught:
        read_playbook(write(tmp_path, toml))
    assert str(tmp_path / "playbook" / "playbook.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("dialect", [Dialect.CPP, Dialect.CUDA])
def test_every_idea_of_a_shipped_playbook_can_be_reached(name: str, dialect: Dialect) -> None:
    """Reachable from the root over ideas with an implementation in the same dialect."""
    written = read_playbook(problems_root() / name)
    wanted = {idea.key: idea for idea in written.ideas if dialect in idea.implementations}
    reached = {ROOT}
    while step := {k for k, i in wanted.items() if k not in reached and (not i.after or reached & set(i.after))}:
        reached |= step
    assert set(wanted) <= reached
    assert not wanted or dialect in written.root
