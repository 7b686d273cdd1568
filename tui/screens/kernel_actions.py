"""Actions on the selected kernel: pin, prune, cancel, accept, discard, remeasure, race, combine, attach, note."""

from __future__ import annotations

from textual import work

from engine.domain import commands as c
from engine.domain import corroboration, queries
from engine.domain.errors import EspalierError
from engine.domain.model import CATEGORIES, IdeaText
from engine.domain.state import IdeaStatus, Kernel, SessionState, Stage
from tui.bridge import Capability
from tui.kernel_tools import profile_kernel
from tui.removals import while_shown
from tui.screens.code_form import CodeForm
from tui.screens.dialogs import AskLine, Choice, Choose, Confirm
from tui.screens.idea_form import IdeaForm
from tui.screens.machine_code import MachineCodeScreen
from tui.screens.transport import TransportScreen
from tui.viewmodel import kernels
from tui.viewmodel.fmt import counted


class KernelActionScreen(TransportScreen):
    """A screen on which a kernel is selected (``kernel``) and another may be marked (``marked``)."""

    @property
    def marked(self) -> str:
        """The marked kernel, the first one of actions on two kernels; empty if none is marked."""
        return ""

    def _selected_kernel(self) -> Kernel | None:
        kernel = self.bridge.state.kernels.get(self.kernel)
        if kernel is None:
            self.notify("No kernel yet.", markup=False)
        return kernel

    async def action_pin(self) -> None:
        """Pin the kernel as a parent of later rounds, or unpin it."""
        if kernel := self._selected_kernel():
            pinned = kernel.id in self.bridge.state_now.pinned
            await self.submit(c.UnpinKernel(kernel.id) if pinned else c.PinKernel(kernel.id))

    @work
    async def action_prune(self) -> None:
        """Prune the branch, or reopen a pruned one."""
        kernel = self._selected_kernel()
        if kernel is None:
            return
        if kernel.id in self.bridge.state_now.pruned:
            await self.submit(c.ReopenBranch(kernel.id), f"Reopened {kernel.id}.")
            return
        below = len(queries.descendants(self.bridge.state_now, kernel.id)) - 1
        words = f"Also prunes {counted(below, 'kernel')} below it. " if below else ""
        reason = await self.app.push_screen_wait(
            AskLine(
                f"Prune {kernel.id}",
                f"{words}Reason (optional). {self.key_of('session.prune')} reopens the branch.",
                empty=True,
            )
        )
        if reason is not None:
            await self.submit(c.PruneBranch(kernel.id, reason))

    async def action_cancel(self) -> None:
        """Cancel an unfinished kernel."""
        if kernel := self._selected_kernel():
            await self.submit(c.CancelKernel(kernel.id), f"Cancelled {kernel.id}.")

    @work
    async def action_remeasure(self) -> None:
        """Verify and measure the kernel again."""
        kernel = self._selected_kernel()
        if kernel is None:
            return
        best = queries.incumbent(self.bridge.state_now)
        if best is not None and best.id == kernel.id:
            words = "It is the incumbent. Its verdict is discarded; without a new one that is as good, it loses its place."
            if not await self.app.push_screen_wait(Confirm(f"Remeasure {kernel.id}?", words, "Remeasure")):
                return
        await self.submit(c.Remeasure(kernel.id), f"Remeasuring {kernel.id}.")

    async def action_tune(self) -> None:
        """Tune the kernel on each workload of the suite."""
        if kernel := self._selected_kernel():
            await self.submit(c.TuneKernel(kernel.id), f"{kernel.id} is tuned on each workload next.")

    async def action_dispatch(self) -> None:
        """Add one kernel that runs, on each shape, the best kernel there."""
        await self.attempt(self.bridge.dispatch(), "Added the dispatch; it is built next.")

    @work
    async def action_editor(self) -> None:
        """Open the code in the editor; a changed text becomes a new kernel below this one, once its form is submitted."""
        kernel = self._selected_kernel()
        if kernel is None:
            return
        text = self.open_code(kernel, read_only=not self.bridge.can(Capability.SUBMIT))
        if text is None:
            return
        words = f"Edited code of {kernel.id}: a new kernel"
        form = CodeForm(words, kernel.name, text, self.bridge.empty_kernel(), edited=True, check=self.bridge.check_dialect)
        seed = await self.app.push_screen_wait(form)
        if seed is not None:
            title = f"Edited {kernel.id}: {kernels.title(self.bridge.state_now, kernel)}"
            planted = self.bridge.plant(seed, parent=kernel.id, title=title)
            await self.attempt(planted, f"Added {seed.kernel.name}; it is built next.")

    def action_machine_code(self) -> None:
        """List the kernel's machine code, or what differs from the marked kernel's."""
        if kernel := self._selected_kernel():
            marked = self.marked if self.marked in self.bridge.state.kernels and self.marked != kernel.id else ""
            self.app.push_screen(MachineCodeScreen(self.bridge, kernel, marked))

    @work(group="profile")
    async def action_profile(self) -> None:
        """Read the hardware counters of the kernel."""
        kernel = self._selected_kernel()
        if kernel is None:
            return
        self.notify(f"Profiling {kernel.id}; it waits while the device is in use.", markup=False, timeout=4)
        try:
            found = await while_shown(self, profile_kernel(self.bridge.folder, kernel.id))
        except EspalierError as error:
            self.notify(f"{kernel.id} was not profiled: {error}", severity="warning", markup=False, timeout=10)
        else:
            self.notify(f"{kernel.id}: {found}", markup=False, timeout=10)

    async def action_race(self) -> None:
        """Race the kernel against the marked one or the incumbent. On the incumbent: repeat its undecided races."""
        kernel, state = self._selected_kernel(), self.bridge.state_now
        if kernel is None:
            return
        against = self.marked if self.marked in state.kernels and self.marked != kernel.id else None
        best = queries.incumbent(state)
        if against is None and best is not None and best.id == kernel.id:
            await self.submit(c.RaceUndecided(), "Repeating the undecided races with more process pairs.")
            return
        if against is None and best is None:
            keys = (self.key_of("session.mark"), self.key_of("session.race"))
            self.notify(f"No incumbent yet: press {keys[0]} on a kernel, then {keys[1]} on the other.", markup=False)
            return
        other = against or (best.id if best is not None else "")
        await self.submit(c.RaceKernel(kernel.id, against), f"Racing {kernel.id} against {other}.")

    async def action_race_fastest(self) -> None:
        """Race the fastest kernels against the incumbent."""
        await self.submit(c.RaceLeaders(), "Racing the fastest kernels against the incumbent.")

    @work
    async def action_accept(self) -> None:
        """Accept a quarantined kernel."""
        if kernel := self._quarantined_kernel():
            words = f"{'; '.join(kernel.evidence)}.\n\nReason for accepting it (required, recorded in the journal)."
            note = await self.app.push_screen_wait(AskLine(f"Accept {kernel.id}?", words))
            if note:
                await self.submit(c.AcceptKernel(kernel.id, note), f"Accepted {kernel.id}: it now counts as measured.")

    @work
    async def action_discard(self) -> None:
        """Discard a quarantined kernel."""
        if kernel := self._quarantined_kernel():
            words = f"{'; '.join(kernel.evidence)}.\n\nThe kernel fails. Reason (empty: the evidence above)."
            reason = await self.app.push_screen_wait(AskLine(f"Discard {kernel.id}?", words, empty=True))
            if reason is not None:
                await self.submit(c.DiscardKernel(kernel.id, reason), f"Discarded {kernel.id}.")

    def _quarantined_kernel(self) -> Kernel | None:
        """The selected kernel if it is quarantined; otherwise a message names the quarantined ones."""
        kernel = self._selected_kernel()
        if kernel is None or kernel.stage is Stage.QUARANTINED:
            return kernel
        if corroboration.is_doubted(kernel):
            key = self.key_of("session.remeasure")
            self.notify(f"{kernel.id} is not quarantined: its time is not corroborated. {key} remeasures it.", markup=False)
            return None
        waiting = kernels.quarantined(self.bridge.state)
        others = f" Quarantined: {', '.join(one.id for one in waiting)}." if waiting else ""
        self.notify(f"{kernel.id} is not quarantined.{others}", markup=False)
        return None

    @work
    async def action_note(self) -> None:
        """Add a note to the kernel, or to the session if no kernel is selected."""
        target = self.kernel
        text = await self.app.push_screen_wait(AskLine(f"Note on {target or 'the session'}", "The journal records it."))
        if text:
            await self.submit(c.AddNote(target, text))

    @work
    async def action_combine(self) -> None:
        """Add an idea that combines the marked kernel with this one; its writer gets the code of both."""
        state, kernel = self.bridge.state_now, self._selected_kernel()
        other = state.kernels.get(self.marked)
        if kernel is None or other is None or other.id == kernel.id:
            keys = (self.key_of("session.mark"), self.key_of("session.combine"))
            self.notify(f"Mark a kernel first: press {keys[0]} on it, then {keys[1]} on the other.", markup=False)
            return
        title = f"Combine {other.id} with {kernel.id}"
        why = f"Combine {other.id} ({kernels.title(state, other)}) and {kernel.id} ({kernels.title(state, kernel)})."
        form = IdeaForm.new(state, other.id, IdeaText(title, _category(state, other), why), materials=(kernel.id,))
        idea = await self.app.push_screen_wait(form)
        if idea is not None:
            await self.write_idea(idea, "Added: the idea awaits approval.", (kernel.id,))

    @work
    async def action_attach(self) -> None:
        """Attach the kernel to an idea that has no code yet, or detach it."""
        kernel, state = self._selected_kernel(), self.bridge.state_now
        if kernel is None:
            return
        open_ideas = [i for i in state.ideas.values() if not i.implemented and i.status is not IdeaStatus.REJECTED]
        if not open_ideas:
            key = self.key_of("steer.idea")
            self.notify(f"Every idea has its code or is rejected: press {key} to add an idea.", markup=False)
            return
        choices = [Choice(i.id, f"{'✓ ' if kernel.id in i.materials else '  '}{i.id}", i.text.title) for i in open_ideas]
        title = f"Attach {kernel.id} to an idea"
        idea = await self.app.push_screen_wait(Choose(title, choices, cuts=True))
        if idea is not None:
            await self.toggle_attached(idea, kernel.id)


def _category(state: SessionState, kernel: Kernel) -> str:
    """The category of the kernel's idea."""
    idea = state.ideas.get(kernel.idea)
    return idea.text.category if idea is not None and idea.text.category in CATEGORIES else CATEGORIES[0]
