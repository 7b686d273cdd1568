"""Fixtures of toolchain and sandbox tests: a private cache, and each confinement that works on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.sandbox.confinement import Bubblewrap, Confinement, LimitsOnly, probe


@pytest.fixture
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, used instead of the user's."""
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "build"


@pytest.fixture(scope="session")
def bubblewrap() -> Confinement:
    """Bubblewrap, or a skip with the reason."""
    found = probe()
    if not isinstance(found, Bubblewrap):
        pytest.skip(found.reason)
    return found


@pytest.fixture(params=["bubblewrap", "limits"])
def confinement(request: pytest.FixtureRequest) -> Confinement:
    """Either confinement."""
    return request.getfixturevalue("bubblewrap") if request.param == "bubblewrap" else LimitsOnly()


def flaky(folder: Path) -> Path:
    """A bubblewrap whose first start fails, as starts do on a machine under load."""
    script = folder / "bwrap"
    script.write_text(
        f'#!/bin/sh\n[ -e {folder}/tried ] && exec {shutil.which("bwrap")} "$@"\n'
        f": > {folder}/tried\necho 'bwrap: Creating new namespace failed' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    return script
