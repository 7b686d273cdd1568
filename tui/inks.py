"""The colour of each ink and ground of the view models. Colours are named by meaning; ``tui.colours`` has their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tui.viewmodel.cells import Ground, Ink


@dataclass(frozen=True, slots=True)
class InkStyle:
    """A colour variable (empty: the default colour) and a font style."""

    variable: str = ""
    bold: bool = False
    italic: bool = False


INKS: Mapping[Ink, InkStyle] = {
    Ink.PLAIN: InkStyle(),
    Ink.STRONG: InkStyle(bold=True),
    Ink.FAINT: InkStyle("ink-faint"),
    Ink.GOOD: InkStyle("speedup-good"),
    Ink.BAD: InkStyle("speedup-bad"),
    Ink.WARN: InkStyle("speedup-undecided"),
    Ink.TITLE: InkStyle("ink-title", bold=True),
    Ink.LABEL: InkStyle("ink-label"),
    Ink.RULE: InkStyle("ink-rule"),
    Ink.ACCENT: InkStyle("ink-accent"),
    Ink.BEST: InkStyle("badge-best", bold=True),
    Ink.PIN: InkStyle("badge-pin", bold=True),
    Ink.MARK: InkStyle("badge-mark", bold=True),
    Ink.FASTER: InkStyle("speedup-good"),
    Ink.SLOWER: InkStyle("speedup-bad"),
    Ink.UNDECIDED: InkStyle("speedup-undecided"),
    Ink.FASTER_BAR: InkStyle("bar-good"),
    Ink.SLOWER_BAR: InkStyle("bar-bad"),
    Ink.UNDECIDED_BAR: InkStyle("bar-undecided"),
    Ink.FASTER_BAND: InkStyle("band-good"),
    Ink.SLOWER_BAND: InkStyle("band-bad"),
    Ink.UNDECIDED_BAND: InkStyle("band-undecided"),
    Ink.BUILD: InkStyle("stage-build"),
    Ink.VERIFY: InkStyle("stage-verify"),
    Ink.MEASURE: InkStyle("stage-measure"),
    Ink.REPAIR: InkStyle("stage-repair"),
    Ink.WAITING: InkStyle("stage-waiting"),
    Ink.MEASURED: InkStyle("stage-measured"),
    Ink.QUARANTINED: InkStyle("stage-quarantined", bold=True),
    Ink.FAILED: InkStyle("stage-failed"),
    Ink.CANCELLED: InkStyle("stage-cancelled"),
    Ink.KEYWORD: InkStyle("code-keyword"),
    Ink.TYPE: InkStyle("code-type"),
    Ink.FUNCTION: InkStyle("code-function"),
    Ink.STRING: InkStyle("code-string"),
    Ink.NUMBER: InkStyle("code-number"),
    Ink.COMMENT: InkStyle("code-comment", italic=True),
    Ink.DIRECTIVE: InkStyle("code-directive", bold=True),
    Ink.PREPROCESSOR: InkStyle("code-preprocessor"),
    Ink.OPERATOR: InkStyle("code-operator"),
}

GROUNDS: Mapping[Ground, str] = {
    Ground.ADDED: "diff-added",
    Ground.REMOVED: "diff-removed",
    Ground.ADDED_WORD: "diff-added-word",
    Ground.REMOVED_WORD: "diff-removed-word",
    Ground.FASTER_BAND: "band-good",
    Ground.SLOWER_BAND: "band-bad",
    Ground.UNDECIDED_BAND: "band-undecided",
    Ground.TRACK: "track",
    Ground.CHIP: "chip",
}
