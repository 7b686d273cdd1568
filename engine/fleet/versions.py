"""What is installed where a worker runs, and how two such lists differ."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata

_PACKAGES = ("espalier", "torch", "triton", "msgspec")
_COMPILERS = (("g++", "-dumpfullversion"), ("nvcc", "--version"))
_RELEASE = re.compile(r"\brelease ([\d.]+)")
_PROBE_S = 20.0


@cache
def _installed() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for program, option in _COMPILERS:
        if (path := shutil.which(program)) is not None:
            found[program] = _answer(path, option)
    return found


def versions() -> dict[str, str]:
    """Versions of this program, of what it loads and of the compilers, here."""
    return dict(_installed())


def _answer(path: str, option: str) -> str:
    try:
        done = subprocess.run([path, option], capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = done.stdout.strip().splitlines() or ["unknown"]
    released = _RELEASE.search(done.stdout)  # of nvcc: "Cuda compilation tools, release 13.0, V13.0.88"
    return released[1] if released else lines[0].strip()


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each version that differs: ``torch 2.12 there, 2.13 here``."""
    return tuple(
        f"{name} {there.get(name, 'missing')} there, {here.get(name, 'missing')} here"
        for name in dict.fromkeys((*here, *there))
        if there.get(name) != here.get(name)
    )
