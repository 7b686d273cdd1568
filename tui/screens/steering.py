"""The actions of every screen that steers a session, with their dialogs."""

from __future__ import annotations

from collections.abc import Collection

from textual import work

from engine.domain import commands as c
from engine.domain import queries
from engine.domain.state import Idea
from engine.report.text.work import works_words
from tui.bridge import check_settings, writer_error
from tui.screens.bridge_screen import BridgeScreen
from tui.screens.code_form import CodeForm
from tui.screens.dialogs import AskLine, Choice, Choose, Confirm
from tui.screens.idea_form import IdeaForm, IdeaInput
from tui.screens.limits_form import LimitsForm, PausesForm
from tui.screens.models_form import ModelsForm
from tui.screens.prompt_form import PromptForm
from tui.screens.seed_form import SeedForm
from tui.viewmodel import kernels
from tui.viewmodel.fmt import counted
from tui.viewmodel.ideas import nobody_writes
from tui.viewmodel.stages import call_label, calls_by_hand, open_calls

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
