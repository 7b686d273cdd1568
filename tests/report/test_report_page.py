"""The report as HTML and Markdown: complete, self-contained, deterministic, and safe with hostile texts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain import model as m
from engine.report.page import content, render
from engine.report.page.content import Page
from engine.report.page.render import TEXTS, escape_markdown, money

EVIL = (
    "</style></td></tr></table></pre><script>alert(1)</script><img src=x onerror=alert(1)> & \"q\" 'a' | cell `tick` ``` fence "
    "[l](javascript:alert(1)) ![i](http://evil.example/x.png) www.evil.example @you $x$ ~~s~~ <!-- \n# heading\n\n- item"
)
FREE = {
    "title", "category", "rationale", "reason", "text", "software", "arch", "note", "expected", "risks", "bound", "conditions",
    "evidence", "findings", "dropped", "instructions", "mode", "source_name", "notes", "precision",
}  # fmt: skip
"""Fields with text from models, compilers, devices or people."""


def poisoned(value: Any, name: str = "") -> Any:
    """The value with every free text replaced, recursively."""
    if is_dataclass(value) and not isinstance(value, type):
        named = isinstance(value, m.Device | m.Author | e.KernelDrafted | m.Problem)
        changes = {f.name: poisoned(getattr(value, f.name), "title" if named and f.name == "name" else f.name)
                   for f in fields(value)}  # fmt: skip
        return replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(poisoned(inner, name) for inner in value)
    return EVIL if name in FREE and type(value) is str else value


def made(entries: tuple[e.Entry, ...] | None = None, session: str = "softmax-1", code: str = "") -> Page:
    log = showcase.session()[1] if entries is None else entries
    return content.page(session, log, (lambda _: code) if code else showcase.read_blob)


def evil() -> Page:
    return made(tuple(replace(entry, event=poisoned(entry.event)) for entry in showcase.session()[1]), EVIL, EVIL)


class Reader(HTMLParser):
    """Tags, attributes and text of a page. Fails on wrong nesting."""

    VOID = frozenset({"meta", "br", "line", "rect", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._open and self._open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


PARTS = [
    "Softmax over rows", "The winner", "Tree", "Progress", "Roofline", "Rounds and ideas", "Round 0: the naive port",
    "Round 1, parents k1", "Predictions against measurements", "Decisions", "Usage", "Conditions", "Code", "How to run it",
]  # fmt: skip


def headings(markdown: str) -> list[str]:
    text = re.sub(r"^(`{3,})\w*\n(.*?)\n\1$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, re.MULTILINE)


@pytest.mark.slow
def test_the_page_has_every_part_in_order() -> None:
    found = Reader(render.html(made())).headings
    assert [heading for heading in found if heading in PARTS] == PARTS
    assert headings(render.markdown(made())) == found


@pytest.mark.slow
def test_every_kernel_idea_and_figure_is_on_both_pages() -> None:
    state, _ = showcase.session()
    as_html, as_markdown = " ".join(Reader(render.html(made())).words), render.markdown(made())
    for text in (as_html, as_markdown):
        assert all(re.search(rf"\b{kernel}\b", text) for kernel in state.kernels)
        assert all(re.search(rf"\b{idea}\b", text) for idea in state.ideas)
        for words in (
            "2.83×",
            "5.43 ms",
            "Two honest cores",
            "fp32",
            "two passes will not beat one",
            "espalier rerun",
            "awaiting approval",
        ):
            assert words in text, words
    assert "float top = -INFINITY" in "".join(Reader(render.html(made())).words)
    assert "float top = -INFINITY" in as_markdown


def test_the_page_loads_nothing() -> None:
    text = render.html(made())
    read = Reader(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & read.tags.keys()
    for tag, name, value in read.attributes:
        assert name not in ("src", "srcset", "data", "action", "background"), (tag, name)
        assert name != "href" or value.startswith("#")
        assert not name.startswith("on"), (tag, name)
    assert "@import" not in text
    assert "url(" not in text
    assert ("meta", "content", TEXTS["POLICY"]) in read.attributes
    anchors = {value.removeprefix("#") for _, name, value in read.attributes if name == "href"}
    assert anchors == {value for tag, name, value in read.attributes if tag == "section" and name == "id"}


def test_the_charts_are_well_formed() -> None:
    charts = re.findall(r"<svg.*?</svg>", render.html(evil()), re.DOTALL)
    assert len(charts) == 2
    for chart in charts:
        tree = ET.fromstring(chart)
        _, _, width, height = map(float, tree.attrib["viewBox"].split())
        for dot in tree.iter("circle"):
            assert 0 <= float(dot.attrib["cx"]) <= width
            assert 0 <= float(dot.attrib["cy"]) <= height


@pytest.mark.slow
def test_hostile_text_is_plain_text_in_html() -> None:
    clean, dirty = Reader(render.html(made(code="x"))), Reader(render.html(evil()))
    assert not {"script", "img", "style "} & dirty.tags.keys()
    assert dirty.tags["table"] == clean.tags["table"]
    assert dirty.tags["style"] == 1
    assert not any(name.startswith("on") or name == "src" for _, name, _ in dirty.attributes)
    assert "".join(dirty.words).count("<script>alert(1)</script>") > 20


def test_hostile_text_is_plain_text_in_markdown() -> None:
    text = render.markdown(evil())
    blocks = re.findall(r"^(`{3,})\w*\n(.*?)\n\1$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4, "tree, progress, code, commands: no text closes a block"
    outside = re.sub(r"^(`{3,})\w*\n(.*?)\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<" not in outside
    assert not re.search(r"(?<!\\)\]\(", outside)
    assert not re.search(r"(?<!\\)://", outside)
    assert "@" not in outside
    assert not re.search(r"(?i)\bwww\.", outside)
    assert len(headings(text)) == len(headings(render.markdown(made())))
    for table in re.findall(r"(?:^\|.*\n)+", outside, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain words, 1.5x (fast)", "plain words, 1.5x (fast)"),
        ("a|b", r"a\|b"),
        ("<b> & `c`", r"&lt;b&gt; &amp; \`c\`"),
        ("two\nlines", "two lines"),
        (r"back\slash", r"back\\slash"),
        ("http://x.y", r"http\://x.y"),
        ("WWW.x.y", r"WWW\.x.y"),
    ],
)
def test_markdown_syntax_is_escaped(text: str, written: str) -> None:
    assert escape_markdown(text) == written


@pytest.mark.slow
def test_the_same_session_gives_the_same_page() -> None:
    assert render.html(made()) == render.html(made())
    assert render.markdown(made()) == render.markdown(made())


@pytest.mark.slow
@pytest.mark.parametrize("events", [(), (b.opened(),), (b.opened(), b.prepared()), b.first_round(0.5)[:8]])
def test_a_session_without_results_has_a_page(events: tuple[e.Event, ...]) -> None:
    found = made(b.entries(events))
    assert found.winner is None
    assert "No verified kernel" in render.html(found)
    assert "No verified kernel" in render.markdown(found)


@pytest.mark.slow
def test_a_winner_whose_interval_contains_one_is_not_called_faster() -> None:
    found = made(b.entries(b.first_round(0.8)), code="x")
    assert found.winner is not None
    assert not found.winner.shown
    assert "not shown to be faster" in render.html(found)
    assert "hero undecided" in render.html(found)


def test_quarantined_kernels_are_neither_drawn_nor_counted_as_a_gain() -> None:
    state, _ = showcase.session()
    found = made()
    for row in found.rows:
        if state.kernels[row.kernel].stage == "quarantined":
            assert row.tone == "warn"
            assert row.remark
            assert (row.time, row.speedup) == ("", None), "a claim is no result"
            assert row.kernel not in {dot.kernel for dot in found.climb.dots}
    assert found.climb.incumbents[-1].speedup == pytest.approx(2.83)


def test_a_time_that_is_not_corroborated_is_marked_in_the_report() -> None:
    doubt = "not corroborated: every process pair was disturbed by CPU contention"
    unsure = replace(b.measurement(9.0), corroborated=False, doubts=(doubt,))
    log = b.entries([*b.first_round(), *b.measured_kernel("k2", 9.0, parent="k1")[:-1], e.KernelMeasured("k2", unsure, 1.0)])
    found = made(log, code="x")
    (row,) = [row for row in found.rows if row.kernel == "k2"]
    assert (row.outcome, row.tone, row.incumbent) == ("not corroborated", "warn", False)
    assert doubt in row.remark
    assert [(dot.kernel, dot.precise) for dot in found.climb.dots] == [("k1", True), ("k2", False)]
    assert found.winner is not None
    assert found.winner.kernel == "k1"
    evidence = [*log, *b.entries([e.KernelQuarantined("k2", ("too fast",)), e.KernelAccepted("k2", "seen")], start=len(log))]
    accepted = made(tuple(evidence), code="x")
    assert accepted.winner is not None
    assert accepted.winner.kernel == "k2"
    assert "not corroborated, accepted by the engineer" in content.headline(accepted.winner, "eager")


def test_decisions_list_who_what_and_why() -> None:
    log = [
        *b.entries(b.first_round()),
        *(replace(entry, by=m.ENGINEER) for entry in b.entries(
            [e.RoundOpened(1, ("k1",)), b.proposed("i2", "i3", "i4", round_number=1, parent="k1", from_source=False),
             e.IdeaSelected("i2"), e.IdeaSelected("i4"), e.IdeaRejected("i3", "seen before"), e.ModeChanged("autopilot")],
            start=len(b.first_round()))),
    ]  # fmt: skip
    found = [(d.who, d.what, d.about, d.reason) for d in made(tuple(log), code="x").decisions]
    assert found[0] == ("policy", "approved", ("i1",), "")
    assert found[2:] == [
        ("engineer", "approved", ("i2", "i4"), ""),
        ("engineer", "rejected", ("i3",), "seen before"),
        ("engineer", "changed the mode to autopilot", (), ""),
    ]


def test_usage_is_listed_by_model_and_round() -> None:
    text = m.CallRole.IDEAS
    calls = (
        e.CallStarted("c1", "propose:0", text, "openai:a", b.digest("p"), 10),
        e.CallAnswered("c1", b.digest("r"), m.Usage(1000, 200, 300), 0.25),
        e.CallStarted("c2", "implement:i1", m.CallRole.CODE, "openai:b", b.digest("p"), 10),
        e.CallAnswered("c2", b.digest("r"), m.Usage(10, 0, 5), None),
        e.CallStarted("c3", "implement:i1", m.CallRole.CODE, "openai:b", b.digest("p"), 10),
        e.CallAnswered("c3", b.digest("r"), m.Usage(10, 0, 5), None, recalled=True),
    )
    spent = made(b.entries((*b.first_round(), *calls)), code="x").spending
    rows = spent.by_model.items()
    assert [(name, row.calls, row.recalled, row.usage.input, money(row)) for name, row in rows] == [
        ("openai:a, ideas", 1, 0, 1000, "$0.2500"),
        ("openai:b, code", 2, 1, 10, "price unknown"),
    ]
    assert spent.total.usage == m.Usage(1010, 200, 305)
    assert money(spent.total) == "$0.2500 and 1 of unknown price"
    assert list(spent.by_round) == ["round 0"]
