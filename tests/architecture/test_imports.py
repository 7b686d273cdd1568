"""Imports have no cycles, and heavy modules are loaded only where needed. That they point down, ``lint-imports`` checks."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import grimp
import networkx
import pytest
from architecture.source import PACKAGES, ROOT

HEAVY = ("torch", "openai", "google.genai", "anthropic", "httpx", "triton", "jinja2")


def test_there_are_no_import_cycles() -> None:
    """Imports inside functions count, too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    arrows = networkx.DiGraph()
    for module in graph.modules:
        arrows.add_edges_from((module, imported) for imported in graph.find_modules_directly_imported_by(module))
    circles = [sorted(circle) for circle in networkx.strongly_connected_components(arrows) if len(circle) > 1]
    assert not circles


@pytest.mark.parametrize("module", ["tui.app", "engine.cli.main", "engine.session.factory", "engine.trial.client", "espalier"])
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    """The linter reads imports as text; this test runs them."""
    assert not _loaded_by(module) & set(HEAVY)


@pytest.mark.parametrize("module", ["engine.cli.main", "engine.session.factory", "engine.trial.client"])
def test_importing_the_engine_loads_no_screen(module: str) -> None:
    assert not _loaded_by(module) & {"textual", "rich", "tui"}


def test_home_is_drawn_before_the_engine_is_imported() -> None:
    loaded = {name for name in _loaded_by("tui.app") if name.startswith(("engine.", "tui."))}
    early = {name for name in loaded if name.startswith(("engine.session", "engine.ideas", "engine.journal", "engine.problem"))}
    assert early <= {"engine.journal", "engine.journal.user_folders"}  # paths alone
    assert not loaded & {"engine.domain.model", "engine.domain.state", "tui.bridge", "tui.screens.session"}


def test_the_runner_loads_nothing_of_the_judge_and_the_judge_nothing_of_the_runner() -> None:
    for mine, theirs in (("runner.host", "judge"), ("judge.server", "runner")):
        loaded = _loaded_by(f"engine.trial.{mine}")
        assert not {name for name in loaded if name.startswith(f"engine.trial.{theirs}")}


def test_the_processes_of_a_trial_on_a_cpu_load_no_compiler() -> None:
    """Each import of it takes a moment of every verdict, in every process."""
    for modules in ("engine.trial.judge.server", "engine.problem.reference, engine.trial.runner.launchers"):
        assert not _loaded_by(modules) & {"triton", "torch._dynamo"}


@cache
def _loaded_by(module: str) -> frozenset[str]:
    """The modules that a fresh interpreter has loaded after importing ``module``."""
    program = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return frozenset(json.loads(done.stdout))
