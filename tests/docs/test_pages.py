"""Links lead somewhere, the README stays short, the site builds strictly, and its search answers in an engineer's words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from docs.pages import PAGES, ROOT, ROOT_PAGES, name

README_BYTES = 9000
_LINK = re.compile(r"!?\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

TASKS = {
    "race two kernels": "how-to/race/",
    "see what a session cost": "how-to/cost/",
    "use my own problem": "tutorial/own-problem/",
    "move a session to another machine": "how-to/move/",
    "open somebody else's session": "how-to/trust/",
    "stop spending money": "how-to/cost/",
    "bring my own kernel": "how-to/own-kernel/",
    "why was my kernel rejected": "how-to/own-kernel/",
    "compare to torch.compile": "how-to/baselines/",
    "use a local model": "how-to/models/",
    "export the best kernel": "how-to/export/",
}
"""What an engineer types into the search → the page that answers."""


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    plain = [re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in _HEADING.findall(text)]
    return {re.sub(r"\s+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", ROOT_PAGES, ids=lambda page: page.name)
def test_links_of_the_root_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        found = (page.parent / target) if target else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor in _anchors(found), f"{page.name} links to {target}#{anchor}"


def test_the_readme_is_one_screenful_with_a_picture() -> None:
    readme = (ROOT / "README.md").read_bytes()
    assert len(readme) <= README_BYTES
    assert readme.count(b"](docs/pictures/") == 1


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_table_and_a_list_begin_after_a_blank_line(page: Path) -> None:
    """Without one, the site shows them as part of the paragraph above."""
    lines = _FENCED.sub("", page.read_text(encoding="utf-8")).splitlines()
    for above, line in pairwise(lines):
        for start in ("| ", "- "):
            begins = line.startswith(start) and not above.startswith((start, "|-", "  "))
            assert not (begins and above.strip()), line


def test_no_page_is_left_out_of_the_site() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [page for page in PAGES if page not in ROOT_PAGES and str(page.relative_to(ROOT / "docs")) not in settings]
    assert not missing


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    pytest.importorskip("material", reason="the site needs the extra `docs`")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    target = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(target), strict=True))
    return target


def test_the_site_builds_strictly_with_its_generated_reference(site: Path) -> None:
    commands = (site / "reference" / "command-line" / "index.html").read_text(encoding="utf-8")
    assert "espalier kernel race" in commands
    assert "<!-- generate" not in "".join(page.read_text(encoding="utf-8") for page in site.rglob("index.html"))


@pytest.fixture(scope="module")
def search(site: Path) -> Callable[[str], str]:
    """The page that the site's search lists first."""
    lunr = pytest.importorskip("lunr", reason="the search needs the extra `docs`").lunr
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    fields = [{"field_name": "title", "boost": 1000}, {"field_name": "text", "boost": 1}]
    index = lunr(ref="location", fields=fields, documents=entries)
    return lambda words: str(index.search(words)[0]["ref"]).partition("#")[0]


@pytest.mark.parametrize("task", TASKS)
def test_the_search_finds_a_task_in_an_engineers_words(search: Callable[[str], str], task: str) -> None:
    assert search(task) == TASKS[task]
