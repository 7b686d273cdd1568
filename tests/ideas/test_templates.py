"""Templates with named slots: filled strictly and only once."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import ProposerError
from engine.ideas.prompts.templates import Template, fenced, part, template

NAMES = sorted(f.name.removesuffix(".md") for f in resources.files("engine.ideas.prompts").iterdir() if f.name.endswith(".md"))
WHOLE = {"ideas", "code", "repair"}


def test_every_file_is_a_template_and_the_whole_prompts_have_a_system_text() -> None:
    assert set(NAMES) == WHOLE | {"abi_cpp", "abi_cuda", "abi_python", "abi_triton", "again", "setting"}
    for name in NAMES:
        found = template(name)
        assert found.user
        assert bool(found.system) is (name in WHOLE)
        assert "{" not in found.fill(**dict.fromkeys(found.slots, "x"))[1].replace('{"', "").replace("{...}", "")


def test_slots_are_filled_with_their_values() -> None:
    assert Template("t", "You: {{who}}", "{{a}} and {{b}}, {{a}}").fill(who="x", a="1", b="2\n") == ("You: x", "1 and 2, 1")


@pytest.mark.parametrize(
    ("given_values", "message"), [({}, "lacks values for a, b"), ({"a": "", "b": "", "c": ""}, "has no slots c")]
)
def test_slots_and_values_must_agree(given_values: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Template("t", "", "{{a}} {{b}}").fill(**given_values)


def test_a_missing_template_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        template("none")


@given(st.text() | st.sampled_from(["{{b}}", "{{a}}", "\\1", "{{", "\\g<1>"]))
def test_slots_inside_values_are_not_filled(text: str) -> None:
    assert Template("t", "", "[{{a}}|{{b}}]").fill(a=text, b="secret")[1] == f"[{text.strip(chr(10))}|secret]"


@given(st.text(alphabet="`~ab\n") | st.text())
def test_nothing_inside_closes_its_fence(text: str) -> None:
    fence = fenced(text, "cpp").splitlines()[0].removesuffix("cpp")
    assert set(fence) == {"`"}
    assert fence not in text
    assert len(fence) >= 3


def test_a_part_is_its_user_text() -> None:
    assert part("again", user="Question.", reason="no JSON").startswith("Question.\n")


def test_a_users_template_replaces_the_shipped_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    folder = tmp_path / "config" / "prompts"
    folder.mkdir(parents=True)
    (folder / "again.md").write_text("{{reason}}: once more.\n")
    assert part("again", user="Question.", reason="no JSON") == "no JSON: once more."
    (folder / "again.md").write_text("{{nonsense}}")
    with pytest.raises(ProposerError, match=r"unknown slot \{\{nonsense\}\}: use reason, user"):
        part("again", user="Question.", reason="no JSON")
