"""What ``mkdocs build`` calls: adds pages of the repository's root to the site and fills in the generated reference."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import reference  # noqa: E402  # beside this file

PROJECT = {name: f"project/{name.lower()}" for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
"""Page of the root → where the site shows it."""
_TO_ROOT = re.compile(rf"\]\(((?:\.\./)*)\.\./({'|'.join(map(re.escape, PROJECT))})(#[^)\s]*)?\)")
"""A link from a page of ``docs/`` to a page of the root, as GitHub follows it."""
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of the root, with their links as the site needs them."""
    for name, place in PROJECT.items():
        text = _LINK.sub(_relinked, (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fills in what is generated, and points links to pages of the root at their place in the site."""
    return reference.expand(_TO_ROOT.sub(lambda link: f"]({link[1]}{PROJECT[link[2]]}{link[3] or ''})", markdown))


def _relinked(link: re.Match[str]) -> str:
    target, anchor = link[1], link[2] or ""
    if target in PROJECT:
        return f"]({Path(PROJECT[target]).name}{anchor})"
    if target.startswith("docs/"):
        return f"](../{target.removeprefix('docs/')}{anchor})"
    return f"]({target}{anchor})"
