"""A session as HTML for notebooks: its tree and where it stands, as ``espalier session show`` prints them."""

from __future__ import annotations

import html
from pathlib import Path

from engine.domain.state import SessionState
from engine.report.text.lines import Line, Tone, fields, line
from engine.report.text.tree import evidence, heading, tree

_STYLES = {
    Tone.STRONG: "font-weight:600", Tone.FAINT: "opacity:.6", Tone.GOOD: "color:#1a7f37", Tone.BAD: "color:#cf222e",
    Tone.WARN: "color:#9a6700",
}  # fmt: skip


def session_html(state: SessionState, folder: Path) -> str:
    """The heading, the tree and the evidence. Every text of the session is escaped."""
    rows = [heading(state), line(), *tree(state), line(), *fields(evidence(state)), line(f"session  {folder}")]
    return f'<pre style="line-height:1.35">{chr(10).join(map(_html, rows))}</pre>'


def _html(spans: Line) -> str:
    return "".join(_span(span.text, span.tone) for span in spans)


def _span(text: str, tone: Tone) -> str:
    style = _STYLES.get(tone)
    return f'<span style="{style}">{html.escape(text)}</span>' if style else html.escape(text)
