"""One compilation, as the builder runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.sandbox.include_trees import IncludeTree

HEADER = "problem.h"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One compilation in a folder that holds ``code_file`` and ``problem.h`` and receives ``binary``."""

    argv: tuple[str, ...]
    """Empty for ``python``, which is not compiled."""
    code_file: str
    binary: str
    identity: tuple[str, ...]
    """Compiler versions and whatever else the binary depends on."""
    readable: tuple[Path, ...] = ()
    path: tuple[Path, ...] = ()
    """Folders of executables that the compiler calls."""
    extra_files: Mapping[str, str] = field(default_factory=dict)
    """Further input files: name → text. They are not cached."""
    header: str = HEADER
    """Name of the file that receives the request's header."""
    trees: tuple[IncludeTree, ...] = ()
    """The user's header trees, which ``argv`` searches."""
    intermediate: str = ""
    """What ``argv`` writes, where a second step makes ``binary`` of it."""
