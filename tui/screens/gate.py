"""The gate: ideas that await approval. Approve, reject, edit, order, write or park them.

No key approves an idea in the half second after ideas appear: the key may have been meant for another screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from engine.domain import commands as c
from engine.domain import queries
from engine.domain.rules import adaptive
from engine.domain.state import Idea, IdeaStatus, SessionState
from engine.report.text.rounds import of_round
from tui import actions
from tui.bridge import Bridge, Capability
from tui.screens.dialogs import AskLine
from tui.screens.idea_form import IdeaForm
from tui.screens.steering import SteeringScreen
from tui.viewmodel import footer
from tui.viewmodel.cells import bounded, clean_lines, one_line, wrap
from tui.viewmodel.ideas import idea_facts, round_number, status
from tui.widgets.bars import SessionHeader, StageStrip
from tui.widgets.idea_list import IdeaList
from tui.widgets.key_footer import KeyFooter

GRACE_SECONDS = 0.5
_BOUNCE_SECONDS = 0.25
"""How long after a decision the next idea cannot be approved: a bouncing key approves one idea."""
_OPEN = (IdeaStatus.PROPOSED, IdeaStatus.PARKED)


class GateScreen(SteeringScreen):
    """Ideas at the left, the highlighted one in full at the right (below on a narrow screen)."""

    PLACE: ClassVar[actions.Place] = actions.Place.GATE
    CSS_PATH = "gate.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.GATE)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012  # an instance variable of Screen
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-low")]  # noqa: RUF012

    def __init__(self, bridge: Bridge, clock: Callable[[], float] = time.time, idea: str = "") -> None:
        """``idea``: the one to show first."""
        super().__init__(bridge, clock)
        self._first_shown = idea
        self._frozen_until = clock() + GRACE_SECONDS
        self._decided = ""
        """The idea that was decided last on this screen; the highlight moves on from it."""
        self._awaited: frozenset[str] = frozenset()

    @property
    def idea(self) -> str:
        return str(self.query_one(IdeaList).highlighted)

    def compose(self) -> ComposeResult:
        yield SessionHeader()
        yield Static("", id="question")
        with Container(id="body"):
            yield IdeaList()
            with VerticalScroll(id="card") as card:
                card.can_focus = False
                yield Static("", id="words")
        yield StageStrip()
        yield KeyFooter()

    def begin(self) -> None:
        self.query_one(IdeaList).focus()
        if self._first_shown:
            self.go_to(self._first_shown)

    def watch_state(self, state: SessionState | None) -> None:
        if state is None:
            return
        awaited = frozenset(idea.id for idea in queries.pending_ideas(state))
        if awaited - self._awaited:
            self._frozen_until = self.clock() + GRACE_SECONDS
        self._awaited = awaited
        for widget in (self.query_one(IdeaList), self.query_one(SessionHeader)):
            widget.state = state
        self._highlight_next(state)
        self._describe()

    def update_live(self) -> None:
        self.update_bars()
        self.show_text(self._question(), self.query_one("#question", Static))

    def _question(self) -> Content:
        """Which ideas these are; that some await approval is said by the header and by each of them."""
        number = round_number(self.bridge.state, self.query_one(IdeaList).round)
        deadline = self.bridge.deadline
        if not self._awaited:
            rest = f" · none awaits approval · {self.key_of('gate.back')} returns to the tree"
        else:
            rest = f" · auto-approved in {max(0, round(deadline - self.clock()))} s" if deadline is not None else ""
        return Content.assemble((f" Ideas {of_round(self.bridge.state, number)}", "bold"), (rest, "$text-muted"))

    @on(IdeaList.Highlighted)
    def _describe(self) -> None:
        state = self.bridge.state
        idea = state.ideas.get(self.idea)
        self.query_one("#words", Static).update(
            idea_card(state, idea, adaptive.advice(state).get(idea.id, ""), self.query_one("#words").size.width)
            if idea
            else Content("")
        )
        self.query_one(KeyFooter).keys = footer.gate_keys(state, self.idea, steered=self.bridge.can(Capability.SUBMIT))

    def on_resize(self) -> None:
        if self.is_mounted:
            self.call_after_refresh(self._describe)

    def _undecided(self) -> Idea | None:
        idea = self.bridge.state.ideas.get(self.idea)
        if idea is None or idea.status not in _OPEN:
            self.notify(
                f"{idea.id} is already {status(self.bridge.state, idea).word}." if idea else "No idea is selected.",
                markup=False,
            )
            return None
        return idea

    def _too_soon(self) -> bool:
        return self.clock() < self._frozen_until

    def _highlight_next(self, state: SessionState) -> None:
        """After a decision made here, highlight the next idea that awaits one."""
        decided = state.ideas.get(self._decided)
        if decided is None or decided.status is IdeaStatus.PROPOSED:
            return
        listed = self.query_one(IdeaList)
        waiting = [idea for idea in listed.ideas if idea in self._awaited]
        if waiting and listed.highlighted == self._decided:
            listed.highlighted = waiting[0]
        self._decided = ""

    async def _decide(self, command: c.SelectIdeas | c.RejectIdea | c.ParkIdea, idea: str, done: str = "") -> None:
        self._decided = idea
        if await self.submit(command, done):
            self._frozen_until = self.clock() + _BOUNCE_SECONDS
            self._leave_when_done()

    @on(IdeaList.Chosen)
    async def action_approve(self) -> None:
        """Approve the highlighted idea."""
        idea = self._undecided()
        if idea is not None and not self._too_soon():
            await self._decide(c.SelectIdeas((idea.id,)), idea.id)

    async def action_approve_all(self) -> None:
        """Approve all ideas that await approval."""
        if not self._too_soon() and await self.submit(c.SelectIdeas()):
            self._leave_when_done()

    @work
    async def action_reject(self) -> None:
        """Reject the highlighted idea."""
        idea = self._undecided()
        if idea is None:
            return
        words = "Reason (optional). It goes into the next prompt."
        reason = await self.app.push_screen_wait(AskLine(f"Reject {idea.id}: {idea.text.title}", words, empty=True))
        if reason is not None:
            await self._decide(c.RejectIdea(idea.id, reason), idea.id)

    async def action_park(self) -> None:
        """Put the highlighted idea aside."""
        idea = self._undecided()
        if idea is not None:
            await self._decide(c.ParkIdea(idea.id), idea.id, f"{idea.id} is parked. Approve it here at any time.")

    @work
    async def action_edit(self) -> None:
        """Edit the highlighted idea."""
        idea = self._undecided()
        if idea is None:
            return
        edited = await self.app.push_screen_wait(
            IdeaForm.edit(self.bridge.state_now, idea, [name for name, _ in self.bridge.writers()])
        )
        if edited is not None:
            text = edited.text
            await self.submit(
                c.EditIdea(
                    idea.id,
                    text.title,
                    text.rationale,
                    text.category,
                    edited.parent,
                    edited.branch,
                    text.predicted,
                    edited.writer,
                )
            )

    async def action_up(self) -> None:
        """Move the highlighted idea up."""
        await self._reorder(-1)

    async def action_down(self) -> None:
        """Move the highlighted idea down."""
        await self._reorder(+1)

    async def _reorder(self, step: int) -> None:
        waiting = [idea.id for idea in queries.pending_ideas(self.bridge.state_now)]
        if self.idea not in waiting:
            self.notify("Only ideas that await approval can be ordered.", markup=False)
            return
        here = waiting.index(self.idea)
        there = here + step
        if 0 <= there < len(waiting):
            waiting[here], waiting[there] = waiting[there], waiting[here]
            await self.submit(c.ReorderIdeas(tuple(waiting)))

    @work
    async def action_parent(self) -> None:
        """Choose another parent kernel."""
        idea = self._undecided()
        if idea is not None:
            parent = await self.choose_kernel(f"Parent kernel of {idea.id}", present=idea.parent or "")
            if parent is not None and parent != idea.parent:
                await self.submit(c.EditIdea(idea.id, parent=parent))

    @work
    async def action_writer(self) -> None:
        """Choose the writer of the idea's code; of an approved idea, until it is written."""
        idea = self.bridge.state_now.ideas.get(self.idea)
        if idea is None or idea.implemented or idea.status is not IdeaStatus.SELECTED:
            idea = self._undecided()
        if idea is not None:
            writer = await self.choose_writer(idea)
            if writer is not None and writer != idea.writer:
                await self.submit(c.EditIdea(idea.id, writer=writer))

    @work
    async def action_attach(self) -> None:
        """Attach a kernel to the idea, or detach it."""
        idea = self.bridge.state_now.ideas.get(self.idea)
        if idea is not None:
            kernel = await self.choose_kernel(f"Attach a kernel to {idea.id}", chosen=idea.materials)
            if kernel is not None:
                await self.toggle_attached(idea.id, kernel)

    async def action_more(self) -> None:
        """Ask for one more kernel of the idea."""
        await self._branch(+1)

    async def action_fewer(self) -> None:
        """Ask for one kernel fewer of the idea."""
        await self._branch(-1)

    async def _branch(self, step: int) -> None:
        idea = self._undecided()
        if idea is not None:
            await self.submit(c.EditIdea(idea.id, branch=idea.branch + step))

    def action_write(self) -> None:
        """Write the kernel of the highlighted idea."""
        idea = self.bridge.state.ideas.get(self.idea)
        if idea is not None:
            self.write_implementation(idea.id)

    def go_to(self, idea: str) -> None:
        """Show this idea in its round."""
        found = self.bridge.state.ideas.get(idea)
        if found is not None:
            listed = self.query_one(IdeaList)
            listed.round = found.round
            listed.highlighted = idea
            self.update_live()

    def action_previous_round(self) -> None:
        """Show the ideas of the previous round."""
        self._show_round(-1)

    def action_next_round(self) -> None:
        """Show the ideas of the next round."""
        self._show_round(+1)

    def _show_round(self, step: int) -> None:
        rounds = sorted({idea.round for idea in self.bridge.state.ideas.values()})
        listed = self.query_one(IdeaList)
        present = listed.round if listed.round in rounds else rounds[-1] if rounds else None
        if present is not None:
            place = min(max(rounds.index(present) + step, 0), len(rounds) - 1)
            listed.round = rounds[place]
            self.update_live()

    def action_scroll_card(self, pages: int) -> None:
        """Scroll the text of the highlighted idea."""
        card = self.query_one("#card")
        card.scroll_relative(y=pages * max(1, card.size.height - 1), animate=False)

    def action_back(self) -> None:
        """Return to the tree."""
        self.dismiss()

    def _leave_when_done(self) -> None:
        if not queries.pending_ideas(self.bridge.state_now) and self.is_active:
            self.dismiss()


_NAMES, _LEAST_BESIDE = 11, 24
"""Cells of a fact's name; the least beside it for words of several lines, which else go on below the name."""


def idea_card(state: SessionState, idea: Idea, advice: str = "", room: int = 80) -> Content:
    """All facts of an idea, in lines of ``room`` cells. Its text may come from a model and is never parsed as markup."""
    parts: list[tuple[str, str] | str] = [(f"{idea.id}  {one_line(idea.text.title)}\n\n", "bold")]
    beside = room - _NAMES
    for name, words in idea_facts(state, idea, advice):
        text = clean_lines(bounded(words))
        lines = wrap(text, beside) if beside >= _LEAST_BESIDE else [text]
        parts += [(f"{name:<{_NAMES}}", "$text-muted"), f"\n{' ' * _NAMES}".join(lines), "\n"]
    return Content.assemble(*parts, "\n", clean_lines(bounded(idea.text.rationale)) or "No rationale given.")
