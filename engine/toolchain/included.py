"""What a build included from the user's header trees, read from the compiler's own list of dependencies."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from engine.sandbox.include_trees import IncludeTree, digest_of

DEPENDENCIES = "includes.d"
_LONGEST = 8 << 20
_SEPARATOR = re.compile(r"(?<!\\)\s+")


def include_flags(trees: Sequence[IncludeTree]) -> tuple[str, ...]:
    """The options of g++ and nvcc that search the trees and list what was read."""
    return (*(f"-I{tree.path}" for tree in trees), "-MD", "-MF", DEPENDENCIES) if trees else ()


def identity(trees: Sequence[IncludeTree]) -> tuple[str, ...]:
    """What the trees add to a build's key."""
    return tuple(f"include {tree.path} {tree.digest}" for tree in trees)


def visible(trees: Sequence[IncludeTree]) -> tuple[str, ...]:
    """The trees that a module's own compilers may read, with the digest of all their files; what they read is not known."""
    return tuple(f"{tree.path}: visible to the module's compilers, sha256 {tree.digest[:16]}" for tree in trees)


def included_files(folder: Path, trees: Sequence[IncludeTree]) -> tuple[str, ...]:
    """``PATH: N files, sha256 DIGEST`` for each tree, of the files that the build in ``folder`` read."""
    try:
        text = (folder / DEPENDENCIES).read_text(encoding="utf-8", errors="surrogateescape")[:_LONGEST]
    except OSError:
        text = ""
    words = _SEPARATOR.split(text.replace("\\\n", " "))
    read = {os.path.normpath(word.replace("\\ ", " ")) for word in words if word.startswith("/")}
    lines = []
    for tree in trees:
        own = [Path(place) for place in read if Path(place).is_relative_to(tree.path)]
        names = {str(place.relative_to(tree.path)): place for place in own}
        files = {name: place for name, place in names.items() if place.is_file()}
        lines.append(f"{tree.path}: {len(files)} files, sha256 {digest_of(files)[:16]}" if files else f"{tree.path}: nothing")
    return tuple(lines)
