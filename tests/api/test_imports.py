"""``import espalier`` is cheap: what is not used is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import espalier

HEAVY = ("torch", "mcp", "openai", "google.genai", "pydantic", "textual", "rich")


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_it_loads_nothing_else() -> None:
    loaded = modules_after("import espalier")
    assert not {name for name in loaded if name.split(".")[0] in ("engine", "tui")}


@pytest.mark.slow
def test_its_names_load_neither_torch_nor_an_sdk() -> None:
    loaded = modules_after(
        "import espalier\nespalier.evaluate, espalier.Session, espalier.code, espalier.Verdict, espalier.Limits"
    )
    assert "engine.api.session" in loaded
    assert not loaded & set(HEAVY)


def test_every_public_name_exists() -> None:
    for name in espalier.__all__:
        assert getattr(espalier, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = espalier.nothing
