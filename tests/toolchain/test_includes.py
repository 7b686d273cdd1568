"""Header trees of the user: what compilers see of them, what a verdict says of them, what must not be shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.cli import config
from engine.domain.errors import ProblemError
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import Confinement
from engine.sandbox.include_trees import VARIABLE, checked_tree, include_trees
from engine.toolchain.build import Artefact, BuildFailure, BuildOutcome, BuildRequest, build

pytestmark = pytest.mark.usefixtures("cache_root")

CODE = '#include <kit/a b.h>\nextern "C" void launch(float* x, void*) { x[0] = KIT; }\n'


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "include"
    (folder / "kit").mkdir(parents=True)
    (folder / "kit" / "a b.h").write_text('#include "value.h"\n')
    (folder / "kit" / "value.h").write_text("#define KIT 1\n")
    (folder / "kit" / "unused.h").write_text("#define UNUSED\n")
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def built(confinement: Confinement) -> BuildOutcome:
    request = BuildRequest(CODE, Dialect.CPP, Contract.HOST, "", {}, "native", "k.cpp")
    return asyncio.run(build(request, confinement))


def test_a_kernel_includes_from_the_tree_and_the_artefact_says_what(tree: Path, confinement: Confinement) -> None:
    first = built(confinement)
    assert isinstance(first, Artefact), first
    (line,) = first.included
    assert line.startswith(f"{tree}: 2 files, sha256 ")
    assert f"included {line}" in first.log
    again = built(confinement)
    assert isinstance(again, Artefact)
    assert (again.cached, again.included) == (True, first.included)


def test_a_changed_header_is_another_build(tree: Path, bubblewrap: Confinement) -> None:
    first = built(bubblewrap)
    (tree / "kit" / "value.h").write_text("#define KIT 22\n")
    second = built(bubblewrap)
    assert isinstance(first, Artefact)
    assert isinstance(second, Artefact)
    assert first.key != second.key
    assert first.included != second.included


def test_without_the_tree_its_headers_are_not_found(
    tree: Path, bubblewrap: Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    outcome = built(bubblewrap)
    assert isinstance(outcome, BuildFailure)
    assert "k.cpp:1:10: error: kit/a b.h: No such file" in outcome.reason


def test_the_compiler_cannot_write_to_the_tree_or_read_beside_it(tree: Path, bubblewrap: Confinement) -> None:
    (tree.parent / "beside.h").write_text("#define KIT 3\n")
    (tree / "kit" / "value.h").write_text('#include "../../beside.h"\n')
    assert isinstance(built(bubblewrap), BuildFailure)


@pytest.mark.parametrize("name", [".ssh", ".netrc", "id_ed25519", "server.pem", ".env"])
def test_folders_with_keys_are_refused(tree: Path, name: str) -> None:
    (tree / name).write_text("")
    with pytest.raises(ProblemError, match="it holds keys"):
        include_trees()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/", "holds more"),
        ("~", "holds more"),
        ("/usr", "holds more"),
        ("/etc/alternatives", "belongs to the system"),
        ("/no/such/folder", "No such file"),
    ],
)
def test_folders_that_hold_more_than_headers_are_refused(name: str, words: str) -> None:
    with pytest.raises(ProblemError, match=words) as caught:
        checked_tree(name)
    assert "\n" not in str(caught.value)


def test_a_link_to_a_refused_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "headers").symlink_to("/")
    with pytest.raises(ProblemError, match="holds more"):
        checked_tree(str(tmp_path / "headers"))


def test_only_the_users_own_file_names_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    user = config.user_file()
    user.parent.mkdir(parents=True)
    user.write_text('[build]\ninclude = ["/opt/cutlass/include"]\n')
    assert config.include_folders() == ("/opt/cutlass/include",)
    (tmp_path / config.PROJECT).write_text('[build]\ninclude = ["/home"]\n')
    with pytest.raises(config.ConfigError, match="cannot set it"):
        config.include_folders()
    (tmp_path / config.PROJECT).unlink()
    for text, words in (("[build]\nincluded = []\n", "unknown option 'included'"), ("[build]\ninclude = 1\n", "not a list")):
        user.write_text(text)
        with pytest.raises(config.ConfigError, match=words):
            config.include_folders()
