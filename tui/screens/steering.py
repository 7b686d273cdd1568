"""Shared by all screens over a session: reading the state ten times a second, steering actions, rejections as notifications.

Knows the bridge and the dialogs; each screen draws itself.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import ClassVar

from textual import work
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from engine.domain import columns, queries
from engine.domain import commands as c
from engine.domain.errors import EspalierError
from engine.domain.state import Idea, Kernel, SessionState
from engine.domain.work import WorkKey
from tui import actions
from tui.bridge import Bridge, Capability, check_settings, writer_error
from tui.editor import edit_text
from tui.removals import is_going
from tui.screens.code_form import CodeForm
from tui.screens.dialogs import AskLine, Choice, Choose, Confirm, DismissOnceScreen
from tui.screens.idea_form import IdeaForm, IdeaInput
from tui.screens.limits_form import LimitsForm, PausesForm
from tui.screens.models_form import ModelsForm
from tui.screens.prompt_form import PromptForm
from tui.screens.seed_form import SeedForm
from tui.viewmodel import estimate, kernels
from tui.viewmodel.fmt import about, counted
from tui.viewmodel.ideas import nobody_writes
from tui.viewmodel.stages import call_label, calls_by_hand, open_calls, works_words
from tui.widgets.bars import SessionHeader, StageStrip

FRAMES_A_SECOND = 10
_WORKING_SECONDS = 0.25
"""The shortest time between two frames while work runs: drawing takes the processor that builds and measures. A command of the
engineer is drawn at once."""
_RESTING_SECONDS = 1.0
_TINY = 9
"""Rows below which the screen has one line of header, and no strips."""
_MOST_CHOICES = 400
_LONGEST_WAIT = 86_400
_OTHER_WRITER = "…"
MODES = (
    Choice("ask", "ask", "every idea awaits your approval"),
    Choice("ask:30", "ask, 30 s", "ask, then auto-approve after 30 s"),
    Choice("ask:120", "ask, 2 min", "ask, then auto-approve after 2 min"),
    Choice("autopilot", "autopilot", "ideas are approved automatically; you can still steer"),
    Choice("other", "ask, N s …", "ask, then auto-approve after N s"),
)


class BridgeScreen(DismissOnceScreen[None]):
    """A screen over a session. ``state`` is set inside ``batch_update`` at most ten times a second."""

    PLACE: ClassVar[actions.Place] = actions.Place.SESSION
    state: reactive[SessionState | None] = reactive(None, init=False, repaint=False)

    def __init__(self, bridge: Bridge, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.bridge = bridge
        self.clock = clock
        self._frame: tuple[object, ...] = ()
        """What the last frame showed beside the state."""
        self._drawn_at = 0.0

    def on_mount(self) -> None:
        self.set_interval(1 / FRAMES_A_SECOND, self._next_frame)
        self.drain()
        self.begin()

    def begin(self) -> None:
        """Called once, after the first frame. A handler of Textual's would be called for each class that has one."""

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < _TINY, "-tiny")

    def _next_frame(self) -> None:
        """Draw; less often while work runs. At rest, where nothing runs and nothing changed, only the clock, once a second, and
        nothing below another screen."""
        bridge, transport = self.bridge, self.bridge.transport
        place = (transport.position, transport.playing, transport.speed) if transport is not None else None
        seen = (bridge.fault, bridge.stopped, bridge.is_run, place, self.is_active)
        works = bool(bridge.state.started) and bridge.is_run
        at_rest = bridge.state is self.state and not works and seen == self._frame
        if at_rest and not self.is_active:
            return
        pause = _RESTING_SECONDS if at_rest else _WORKING_SECONDS if transport is None and works else 0.0
        if time.monotonic() - self._drawn_at >= pause:
            self._frame = seen
            self.drain()

    def drain(self) -> None:
        """Draw the changes since the last call; nothing where the screen was closed meanwhile."""
        if is_going(self):
            return
        self._drawn_at = time.monotonic()
        with self.app.batch_update():
            if self.bridge.state is not self.state:
                self.state = self.bridge.state
            self.update_live()

    def update_live(self) -> None:
        """Draw what changes without an event: progress, the clock, the transport."""

    def update_bars(self) -> Mapping[WorkKey, float]:
        """Draw the header and the strip of running work; return the seconds of running work."""
        bridge, now = self.bridge, self.clock()
        seek, submit = bridge.can(Capability.SEEK), bridge.can(Capability.SUBMIT)
        ages = bridge.work_ages(now) if bridge.is_run and not seek else {}
        left = estimate.round_left(bridge.state, bridge.mean_seconds(), ages)
        header, strip = self.query_one(SessionHeader), self.query_one(StageStrip)
        header.session = bridge.name
        place = "not running" if not bridge.is_run else "runs elsewhere" if submit else "replay" if seek else "following"
        header.note = "" if bridge.runs_here else place
        header.stopped = bool(bridge.stopped.keys() - bridge.state.called_off.keys())
        header.telemetry = bridge.device_load
        header.deadline, header.now = bridge.deadline, now
        header.round_left = about(left) if left is not None else ""
        strip.is_run = bridge.is_run
        strip.progress, strip.seconds = dict(bridge.progress), {work: int(age) for work, age in ages.items()}
        return ages

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not super().check_action(action, parameters):
            return False
        found = actions.action_for(action, self.PLACE)
        match found.needs if found is not None else actions.Needs.NOTHING:
            case actions.Needs.SUBMIT:
                return self.bridge.can(Capability.SUBMIT)
            case actions.Needs.SUITE:
                return self.bridge.can(Capability.SUBMIT) and len(columns.workloads(self.bridge.state)) > 1
            case actions.Needs.SEEK:
                return self.bridge.can(Capability.SEEK)
            case _:
                return True

    def key_of(self, action: str) -> str:
        """The user's key of an action, as printed on a keyboard."""
        return actions.shown_key(action, getattr(self.app, "user_keys", {}))

    def show_text(self, text: Content, place: Static) -> None:
        """Show a text; the layout changes only if the text does. An empty text takes no room."""
        if place.content != text:
            place.display = bool(text.plain)
            place.update(text)

    def open_code(self, kernel: Kernel, *, read_only: bool) -> str | None:
        """The kernel's code after the editor closed; ``None`` if it is unchanged or was only read."""
        code = self.bridge.code_of(kernel)
        try:
            text = edit_text(self.app, code, kernel.name, read_only=read_only)
        except EspalierError as error:
            self.notify(str(error), severity="warning", markup=False)
            return None
        return text if text != code and not read_only else None

    async def attempt(self, request: Awaitable[None], done: str = "") -> bool:
        """Whether the session accepted; a rejection is shown in the rules' words."""
        try:
            await request
        except EspalierError as error:
            self.notify(str(error), severity="warning", markup=False)
            return False
        if done:
            self.notify(done, markup=False, timeout=2)
        self.drain()
        return True

    async def submit(self, command: c.Command, done: str = "") -> bool:
        """Submit a command; whether the session accepted it."""
        return await self.attempt(self.bridge.submit(command), done)


class SteeringScreen(BridgeScreen):
    """The actions of every screen that steers a session."""

    @property
    def kernel(self) -> str:
        """The selected kernel; empty if the screen has none."""
        return ""

    @property
    def idea(self) -> str:
        """The highlighted idea; empty if the screen has none."""
        return ""

    @work
    async def action_idea(self) -> None:
        """Add an idea."""
        state = self.bridge.state
        idea = await self.app.push_screen_wait(IdeaForm.new(state, self.kernel))
        if idea is not None:
            await self.write_idea(idea, "" if idea.by_hand else "Added: the idea awaits approval.")

    async def write_idea(self, idea: IdeaInput, done: str, attached: tuple[str, ...] = ()) -> None:
        """Submit an idea; if the engineer writes its kernel, open the code form. If nobody can write it, ask who shall."""
        command = c.WriteIdea(idea.text, idea.parent, idea.branch, select=idea.by_hand, materials=attached)
        if not await self.submit(command, done):
            return
        state = self.bridge.state_now
        written = tuple(state.ideas)[-1]
        if idea.by_hand:
            await self.implement(written)
        elif nobody_writes(state, state.ideas[written]):
            await self._ask_writer(state.ideas[written])

    async def _ask_writer(self, idea: Idea) -> None:
        """Say that no writer of the session can write the idea, and offer what helps."""
        choices = (
            Choice("write", "Write it yourself", "the code form opens"),
            Choice("writer", "Choose a writer", "a model, a program, or pasted replies"),
            Choice("later", "Later", f"{idea.id} keeps waiting among the ideas"),
        )
        answer = await self.app.push_screen_wait(Choose(f"The playbook cannot write {idea.id}: who does?", choices, "write"))
        if answer == "write":
            await self.implement(idea.id)
        elif answer == "writer":
            writer = await self.choose_writer(idea)
            if writer:
                await self.submit(c.EditIdea(idea.id, writer=writer), f"{idea.id} is written by {writer}.")

    async def choose_writer(self, idea: Idea) -> str | None:
        """A writer from a list; empty for the session's own."""
        known = [Choice(name, name, words) for name, words in self.bridge.writers()]
        if idea.writer and idea.writer not in {one.id for one in known}:
            known.insert(0, Choice(idea.writer, idea.writer, "named for this idea"))
        own = Choice("", "the session's", "whoever writes the other ideas' code")
        other = Choice(_OTHER_WRITER, "another …", "type openai:MODEL, anthropic:MODEL, gemini:MODEL or command:CMD")
        writer = await self.app.push_screen_wait(Choose(f"Writer of {idea.id}", (own, *known, other), idea.writer))
        if writer != _OTHER_WRITER:
            return writer
        words = "openai:MODEL, anthropic:MODEL, gemini:MODEL or command:CMD."
        return await self.app.push_screen_wait(AskLine(f"Writer of {idea.id}", words, initial=idea.writer, check=writer_error))

    @work
    async def write_implementation(self, idea: str) -> None:
        """Write or paste a kernel of an idea."""
        await self.implement(idea)

    async def toggle_attached(self, idea: str, kernel: str) -> None:
        """Attach a kernel to an idea as reference for its writer, or detach it."""
        if kernel in self.bridge.state_now.ideas[idea].materials:
            await self.submit(c.DetachKernel(idea, kernel), f"Detached {kernel} from {idea}.")
        else:
            await self.submit(c.AttachKernel(idea, kernel), f"Attached {kernel} to {idea}.")

    async def implement(self, idea: str) -> None:
        """Open the code form for an idea, with the parent's code."""
        state = self.bridge.state_now
        target = state.ideas[idea]
        parent = state.kernels.get(target.parent or "")
        name, text = (f"{idea}-{parent.name}", self.bridge.code_of(parent)) if parent else self.bridge.empty_kernel()
        form = CodeForm(f"{idea}: {target.text.title}", name, text, self.bridge.empty_kernel(), check=self.bridge.check_dialect)
        seed = await self.app.push_screen_wait(form)
        if seed is not None:
            await self.attempt(self.bridge.plant(seed, idea=idea), f"Added {seed.kernel.name}; it is built next.")

    @work
    async def action_seed(self) -> None:
        """Add a seed kernel."""
        choice = await self.app.push_screen_wait(SeedForm(self.bridge, self.kernel))
        if choice is None:
            return
        seed = choice.seed
        if seed is None:
            empty = self.bridge.empty_kernel()
            form = CodeForm("Write or paste a kernel", *empty, empty, check=self.bridge.check_dialect)
            seed = await self.app.push_screen_wait(form)
            if seed is None:
                return
        planted = self.bridge.plant(seed, parent=choice.parent, title=choice.title)
        await self.attempt(planted, "Added the seed kernel; it is built next.")

    @work
    async def action_mode(self) -> None:
        """Change the mode."""
        present = str(self.bridge.state.mode)
        mode = await self.app.push_screen_wait(Choose("Mode", MODES, present))
        if mode == "other":
            words = "Seconds to wait for your decision."
            seconds = await self.app.push_screen_wait(
                AskLine("Ask, then auto-approve", words, placeholder="45", check=_seconds_error)
            )
            mode = f"ask:{seconds}" if seconds else None
        if mode is not None and mode != present:
            await self.submit(c.SetMode(mode))

    @work
    async def action_limits(self) -> None:
        """Change the limits that end the session."""
        limits = await self.app.push_screen_wait(LimitsForm(self.bridge.state.limits))
        if limits is not None:
            await self.submit(c.SetLimits(limits))

    @work
    async def action_models(self) -> None:
        """Change proposers, writer, servers and options of models."""
        models = await self.app.push_screen_wait(ModelsForm(self.bridge.state.models, check_settings))
        if models is not None and models != self.bridge.state.models:
            await self.submit(c.SetModels(models), "Later calls use these models.")

    @work
    async def action_pauses(self) -> None:
        """Change the conditions that pause the session."""
        pauses = await self.app.push_screen_wait(PausesForm(self.bridge.state.pauses))
        if pauses is not None:
            await self.submit(c.SetPauses(pauses))

    @work
    async def action_pause(self) -> None:
        """Pause with a reason, which the journal records; or resume."""
        if self.bridge.state_now.paused is not None:
            await self.submit(c.ResumeSearch(), "Resumed.")
            return
        words = "Running work finishes; no further ideas or code are requested. Reason (optional)."
        reason = await self.app.push_screen_wait(AskLine("Pause the session", words, empty=True))
        if reason is not None:
            await self.submit(c.PauseSearch(reason))

    @work
    async def action_answer(self) -> None:
        """Answer a prompt by hand."""
        if not calls_by_hand(self.bridge.state_now):
            self.notify("No prompt awaits your answer.", markup=False)
            return
        reply = await self.app.push_screen_wait(PromptForm(self.bridge))
        if reply is not None:
            await self.attempt(self.bridge.answer(*reply), f"Answered {reply[0].id}.")

    @work
    async def action_cancel_call(self) -> None:
        """Cancel one open call."""
        calls = open_calls(self.bridge.state_now)
        if not calls:
            self.notify("No open model call.", markup=False)
            return
        choices = [Choice(call.id, *call_label(self.bridge.state_now, call)) for call in calls]
        call = await self.app.push_screen_wait(Choose("Cancel a model call", choices))
        if call is not None:
            await self.submit(c.CancelCall(call), f"Cancelled {call}.")

    async def choose_kernel(self, title: str, *, present: str = "", chosen: Collection[str] = ()) -> str | None:
        """Choose a kernel, the fastest first; ``chosen`` kernels have a tick."""
        state = self.bridge.state_now
        best = [kernel.id for kernel in queries.ranked(state)]
        names = list(dict.fromkeys((*chosen, *best, *state.kernels)))[:_MOST_CHOICES]
        if not names:
            self.notify("No kernel yet.", markup=False)
            return None
        choices = []
        for name in names:
            figure = "".join(cell.text for cell in kernels.label(state, name))
            label = f"{'✓ ' if name in chosen else '  '}{figure}"
            choices.append(Choice(name, label, kernels.title(state, state.kernels[name])))
        return await self.app.push_screen_wait(Choose(title, choices, present, cuts=True))

    @work
    async def action_instruct(self) -> None:
        """Change the standing instructions."""
        words = "Every later prompt contains this text. Empty: no instructions."
        initial = self.bridge.state.instructions
        text = await self.app.push_screen_wait(AskLine("Standing instructions", words, initial=initial, empty=True))
        if text is not None and text != initial:
            await self.submit(c.Instruct(text))

    async def action_undo(self) -> None:
        """Take back the latest decision."""
        decisions = self.bridge.state_now.decisions
        await self.submit(c.UndoDecision(), f"Undone: {decisions[-1].words}." if decisions else "")

    async def action_retry(self) -> None:
        """Retry the failed work."""
        state = self.bridge.state_now
        if failed := {**self.bridge.stopped, **state.broken, **state.called_off}:
            await self.attempt(self.bridge.retry(), f"Retrying: {works_words(failed)}.")
        else:
            self.notify("Nothing failed: there is nothing to retry.", markup=False)

    @work
    async def action_end(self) -> None:
        """End the session."""
        waiting = len(queries.unsettled(self.bridge.state))
        words = f"Cancels {counted(waiting, 'unfinished kernel')}. " if waiting else "All kernels are finished. "
        words += "More rounds, a seed kernel or an idea reopens the session."
        if await self.app.push_screen_wait(Confirm("End this session?", words, "End")):
            await self.submit(c.EndSession("ended by hand"))


def _seconds_error(text: str) -> str:
    """What is wrong with a number of seconds; empty if nothing is."""
    return "" if text.isdecimal() and 0 < int(text) <= _LONGEST_WAIT else f"{text} is not a number of seconds; enter 45."
