"""How a kernel appears on the screen: outcome as glyph, word and ink; badges; title. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.domain import corroboration, queries
from engine.domain.model import Author, Interval
from engine.domain.state import Kernel, SessionState, Stage
from engine.domain.work import Sanitize, WorkKey
from engine.report.text.tree import failure_words
from tui.viewmodel import fmt
from tui.viewmodel.cells import Cell, Ink, one_line, width
from tui.viewmodel.tree_facts import tree_facts

INCUMBENT = "★"
PINNED = "⚑"
PRUNED = "⊘"
MARKED = "◆"
SEED = "❖"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A kernel's status or outcome: glyph, word and ink."""

    glyph: str
    word: str
    ink: Ink
    short: str = ""
    """The word for a narrow column, where it has another."""

    @property
    def cell(self) -> Cell:
        return Cell(f"{self.glyph} {self.word}", self.ink)

    def cell_within(self, room: int) -> Cell:
        """The cell with the short word where the word does not fit."""
        return replace(self, word=self.short).cell if self.short and width(self.cell.text) > room else self.cell


_UNDER_WAY: Mapping[Stage, Outcome] = {
    Stage.BUILD: Outcome("◔", "building", Ink.BUILD),
    Stage.VERIFY: Outcome("◑", "verifying", Ink.VERIFY),
    Stage.MEASURE: Outcome("◕", "measuring", Ink.MEASURE),
    Stage.REPAIR: Outcome("↻", "repairing", Ink.REPAIR),
}
_WAITING: Mapping[Stage, Outcome] = {
    Stage.BUILD: Outcome("○", "to build", Ink.WAITING),
    Stage.VERIFY: Outcome("○", "to verify", Ink.WAITING),
    Stage.MEASURE: Outcome("○", "to measure", Ink.WAITING),
    Stage.REPAIR: Outcome("○", "to repair", Ink.WAITING),
}
QUARANTINED = Outcome("◬", "quarantined", Ink.QUARANTINED)
NOT_CORROBORATED = Outcome("?", "not corroborated", Ink.WARN, "not corrob.")
_SANITIZING = Outcome("◉", "sanitizing", Ink.VERIFY)
_RACING = Outcome("⇄", "racing", Ink.MEASURE)
_UNDECIDED = Outcome("≈", "undecided", Ink.UNDECIDED)
_CANCELLED = Outcome("■", "cancelled", Ink.CANCELLED)
_MEASURED = Outcome("●", "measured", Ink.MEASURED)
_SCREENED = Outcome("◍", "screened", Ink.MEASURED)
NOT_COMPARED = Outcome("◌", "not compared", Ink.CANCELLED)
WHY_NOT_COMPARED = "measured on another device or with earlier baselines"
OUTCOMES = (
    _WAITING[Stage.BUILD], *_UNDER_WAY.values(), _SANITIZING, _RACING, _MEASURED, _SCREENED, _UNDECIDED, NOT_CORROBORATED,
    QUARANTINED, Outcome("✗", "failed", Ink.FAILED), _CANCELLED, NOT_COMPARED,
)  # fmt: skip
"""One of each symbol, for the legend."""

OUTCOME_WIDTH = 2 + max(len("build failed"), len("to measure"))


def incumbent(state: SessionState) -> Kernel | None:
    """``queries.incumbent``, cached per state."""
    return tree_facts(state).incumbent


def work_key(kernel: Kernel) -> WorkKey:
    """The key of the work of the kernel's current stage."""
    return WorkKey(kernel.stage.value, (kernel.id,), kernel.attempt)


def quarantined(state: SessionState) -> tuple[Kernel, ...]:
    """Kernels that await accept or discard."""
    return tuple(state.kernels[name] for name in tree_facts(state).quarantined)


def under_way(state: SessionState, kernel: Kernel) -> bool:
    """Whether work on the kernel is running."""
    return not kernel.stage.settled and work_key(kernel) in state.running


def outcome(state: SessionState, kernel: Kernel) -> Outcome:
    """Waiting, running, or how the kernel ended."""
    if kernel.stage is Stage.FAILED:
        word = failure_words(kernel.failure.kind) if kernel.failure else "failed"
        return Outcome("✗", word, Ink.FAILED)
    if kernel.stage is Stage.CANCELLED:
        return _CANCELLED
    if kernel.stage is Stage.QUARANTINED:
        return QUARANTINED
    if Sanitize(kernel.id, kernel.attempt).key in state.running:
        return _SANITIZING
    if kernel.stage is Stage.MEASURED:
        if kernel.epoch != state.epoch:
            return NOT_COMPARED
        found = tree_facts(state)
        if kernel.id in found.racing:
            return _RACING
        if kernel.id in found.undecided:
            return _UNDECIDED
        if corroboration.is_doubted(kernel):
            return NOT_CORROBORATED
        return _MEASURED if queries.is_precise(kernel) else _SCREENED
    return (_UNDER_WAY if under_way(state, kernel) else _WAITING)[kernel.stage]


def title(state: SessionState, kernel: Kernel) -> str:
    """The title of the kernel's idea, or the kernel's name."""
    idea = state.ideas.get(kernel.idea)
    return one_line(idea.text.title) if idea and idea.text.title.strip() else one_line(kernel.name)


def author(name: str) -> str:
    """The short form of an author's name: the model of ``openai:MODEL``; agents and people are told apart from models."""
    known = Author(name)
    return one_line(known.short if known.is_model else known.name)


def label(state: SessionState, kernel_id: str | None) -> tuple[Cell, ...]:
    """``k3 ▲ 1.42×`` with the speedup in its ink; ``no parent`` without a kernel."""
    kernel = state.kernels.get(kernel_id) if kernel_id else None
    if kernel is None:
        return (Cell("no parent", Ink.FAINT),)
    ratio = queries.speedup(state, kernel)
    if ratio is None:
        return (Cell(kernel.id, Ink.STRONG), Cell(" "), outcome(state, kernel).cell)
    return (Cell(kernel.id, Ink.STRONG), Cell(" "), speedup(kernel, ratio))


def speedup(kernel: Kernel, ratio: Interval) -> Cell:
    """The kernel's speedup, marked if it is not corroborated."""
    return fmt.speedup(ratio, doubted=corroboration.is_doubted(kernel))
