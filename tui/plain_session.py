"""A session in the plain mode: its events as lines, its decisions as questions with numbered choices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.domain import commands as c
from engine.domain import queries
from engine.domain.errors import EspalierError
from engine.domain.model import CATEGORIES, IdeaText
from engine.domain.settings import LARGEST_COUNT
from engine.domain.state import Idea, Stage
from engine.report.text.kernel import kernel_lines
from engine.report.text.lines import plain
from engine.report.text.work import work_words
from tui.bridge import Bridge, Capability, Landmark, read_seed
from tui.console import Console, quoted, whole_number
from tui.viewmodel import event_log, spoken
from tui.viewmodel.fmt import capitalised, counted
from tui.viewmodel.stages import calls_by_hand

_LOOK_SECONDS = 0.2
_IDLE_LOOKS = 5
"""Looks without running work after which a session that is not typed to asks what to do."""


class LeaveSession(Exception):
    """The engineer leaves the session."""


@dataclass(frozen=True, slots=True)
class _Act:
    label: str
    run: Callable[[], Awaitable[None]]


class PlainSession:
    """Prints what happens and asks what to do, until the engineer leaves."""

    def __init__(self, console: Console, bridge: Bridge) -> None:
        self._console = console
        self._bridge = bridge
        self._later: set[str] = set()
        """Ideas that the engineer decides on later."""
        self._told_waiting = ""
        self._asks_again = False
        """Whether the menu comes back although nothing changed: something was chosen from it."""

    async def run(self) -> None:
        """Raises InputEnded when standard input ends."""
        tasks = [asyncio.create_task(self._bridge.pump()), asyncio.create_task(self._print_events())]
        if self._bridge.runs_here:
            tasks.append(asyncio.create_task(self._bridge.run()))
        try:
            await asyncio.sleep(0)
            self._console.tell(f"Session {self._bridge.name}.", *spoken.status_lines(self._bridge.state_now))
            if self._console.interactive:
                self._console.tell("Press Enter at any time for the menu.")
            while True:
                await self._attend(tasks)
        except LeaveSession:
            return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _attend(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait until something is to be decided or a line is typed, then ask."""
        idle = 0
        while True:
            for task in tasks:
                if task.done() and (failed := task.exception()) is not None:
                    raise failed
            if ideas := self._open_ideas():
                return await self._decide(ideas)
            waiting = self._waiting()
            if waiting and (waiting != self._told_waiting or self._asks_again):
                if waiting != self._told_waiting:
                    self._console.tell(waiting)
                self._told_waiting = waiting
                return await self._menu()
            if self._console.interactive and self._console.has_line:
                await self._console.line()
                return await self._menu()
            busy = self._bridge.state.running or self._bridge.in_hand
            idle = 0 if busy or self._console.interactive else idle + 1
            if idle > _IDLE_LOOKS:
                return await self._menu()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _print_events(self) -> None:
        bridge = self._bridge
        await asyncio.sleep(0)
        log, shown, count = event_log.log_at(bridge.state), bridge.entries, len(bridge.entries)
        while True:
            entries = bridge.entries
            if entries is not shown or len(entries) < count:
                log, shown, count = event_log.log_at(bridge.state), entries, len(entries)
            elif len(entries) > count:
                log, lines = event_log.append(log, entries[count:])
                count = len(entries)
                self._console.tell(*(line.text.strip() for line in lines))
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def _steers(self) -> bool:
        return self._bridge.can(Capability.SUBMIT)

    def _open_ideas(self) -> tuple[Idea, ...]:
        state = self._bridge.state_now
        if not self._steers or state.mode.is_autopilot or state.closed is not None:
            return ()
        return tuple(idea for idea in queries.pending_ideas(state) if idea.id not in self._later)

    def _waiting(self) -> str:
        """Why the session does not go on by itself; empty if it does, or if ideas are the reason."""
        state, bridge = self._bridge.state_now, self._bridge
        if not bridge.is_run and state.closed is None:
            return f"No process runs this session: espalier open {bridge.shell_name} resumes it."
        if not self._steers:
            return "This session is shown, not steered." if bridge.transport is not None else ""
        if state.closed is not None:
            return f"The session has ended: {state.closed}."
        if bridge.stopped:
            work, reason = next(iter(bridge.stopped.items()))
            return f"{capitalised(work_words(work))} failed: {reason}. Choose Retry, or leave."
        if state.called_off:
            return next(iter(state.called_off.values()))
        if state.paused is not None:
            return f"The session is paused: {state.paused}."
        if prompts := calls_by_hand(state):
            return f"{counted(len(prompts), 'prompt')} to answer by hand: {', '.join(call.id for call in prompts)}."
        held = [one.id for one in state.kernels.values() if one.stage is Stage.QUARANTINED]
        return f"In quarantine: {', '.join(held)}. Accept or discard it." if held else ""

    async def _decide(self, ideas: tuple[Idea, ...]) -> None:
        """Ask about the first open idea."""
        idea = ideas[0]
        self._console.tell("", f"{counted(len(ideas), 'idea')} to decide on.", *spoken.idea_lines(self._bridge.state_now, idea))
        acts = [
            _Act("Approve", lambda: self._submit(c.SelectIdeas((idea.id,)))),
            _Act("Approve all", lambda: self._submit(c.SelectIdeas(tuple(one.id for one in ideas)))),
            _Act("Reject, with a reason", lambda: self._reject(idea)),
            _Act("Edit title and rationale", lambda: self._edit(idea)),
            _Act("Write its kernel: name a file", lambda: self._seed(idea)),
            _Act("Put it aside", lambda: self._submit(c.ParkIdea(idea.id))),
            _Act("Menu of the session", self._menu),
        ]
        chosen = await self._console.choose(f"What about {idea.id}?", [act.label for act in acts], "Decide later")
        if chosen is None:
            self._later.add(idea.id)
        else:
            await acts[chosen].run()

    async def _reject(self, idea: Idea) -> None:
        await self._submit(
            c.RejectIdea(idea.id, await self._console.ask("Reason (it goes into the next prompt; may be empty):"))
        )

    async def _edit(self, idea: Idea) -> None:
        title = await self._console.ask(f"Title (empty keeps: {idea.text.title}):")
        rationale = await self._console.ask("Rationale on one line (empty keeps it):")
        if title or rationale:
            await self._submit(c.EditIdea(idea.id, title or None, rationale or None))

    async def _seed(self, idea: Idea | None = None) -> None:
        name = await self._console.ask("File of the kernel, or SESSION:KERNEL (empty: none):")
        if name:
            try:
                seed = await asyncio.to_thread(read_seed, name)
            except EspalierError as error:
                self._console.tell(str(error))
                return
            await self._attempt(self._bridge.plant(seed, idea=idea.id if idea is not None else None))

    async def _menu(self) -> None:
        acts = [
            _Act("Status", self._status),
            _Act("List the kernels", self._kernels),
            _Act("One kernel with its code", self._kernel),
            *(self._steering() if self._steers else self._watching()),
        ]
        leave, goes_on = "Leave the session", self._bridge.state_now.closed is None and self._steers
        labels = [*(act.label for act in acts), *([leave] if goes_on else ())]
        chosen = await self._console.choose("Menu.", labels, "Go on" if goes_on else leave)
        if chosen == len(acts) or (chosen is None and not goes_on):
            raise LeaveSession
        self._asks_again = chosen is not None
        if chosen is not None:
            await acts[chosen].run()

    def _steering(self) -> list[_Act]:
        state, kernel = self._bridge.state_now, self._ask_kernel
        paused = state.paused is not None
        return [
            _Act("Ideas that await approval", self._reopen_ideas),
            _Act("Add an idea of your own", self._write_idea),
            _Act("Add a kernel from a file", self._seed),
            _Act("Pin a kernel", lambda: kernel("pin", c.PinKernel)),
            _Act("Unpin a kernel", lambda: kernel("unpin", c.UnpinKernel)),
            _Act("Prune a branch", lambda: kernel("prune", c.PruneBranch)),
            _Act("Reopen a pruned branch", lambda: kernel("reopen", c.ReopenBranch)),
            _Act("Race a kernel against the incumbent", lambda: kernel("race", c.RaceKernel)),
            _Act("Remeasure a kernel", lambda: kernel("remeasure", c.Remeasure)),
            _Act("Cancel a kernel", lambda: kernel("cancel", c.CancelKernel)),
            _Act("Accept a quarantined kernel", self._accept),
            _Act("Discard a quarantined kernel", lambda: kernel("discard", c.DiscardKernel)),
            _Act("Answer a prompt from a file", self._answer),
            _Act("Add a note to the session", self._note),
            _Act("Undo the latest decision", lambda: self._submit(c.UndoDecision())),
            _Act("Resume" if paused else "Pause", lambda: self._submit(c.ResumeSearch() if paused else c.PauseSearch())),
            _Act(f"Mode, now {state.mode}", self._mode),
            _Act("Rounds at which the session ends", self._rounds),
            _Act("Retry failed work", lambda: self._attempt(self._bridge.retry())),
            _Act("End the session", self._end),
        ]

    def _watching(self) -> list[_Act]:
        transport = self._bridge.transport
        if transport is None:
            return []

        def jump(landmark: Landmark, back: bool) -> Callable[[], Awaitable[None]]:
            async def run() -> None:
                if not transport.jump(landmark, back=back):
                    self._console.tell("There is none.")
                await asyncio.sleep(_LOOK_SECONDS)
                await self._status()

            return run

        places = ((Landmark.ROUND, "round"), (Landmark.IMPROVEMENT, "incumbent"), (Landmark.DECISION, "decision"))
        return [
            _Act(f"{'Previous' if back else 'Next'} {name}", jump(mark, back))
            for mark, name in places
            for back in (False, True)
        ]

    async def _status(self) -> None:
        self._console.tell(*spoken.status_lines(self._bridge.state_now))

    async def _kernels(self) -> None:
        self._console.tell(*spoken.kernel_list(self._bridge.state_now))

    async def _kernel(self) -> None:
        state = self._bridge.state_now
        found = state.kernels.get(await self._console.ask("Which kernel, such as k3?"))
        if found is None:
            self._console.tell("There is no such kernel.")
            return
        self._console.tell(*(plain(line) for line in kernel_lines(state, found)), "Code:", self._bridge.code_of(found))

    async def _ask_kernel(self, verb: str, command: Callable[[str], c.Command]) -> None:
        name = await self._console.ask(f"Which kernel to {verb}, such as k3? (empty: none)")
        if name and name not in self._bridge.state_now.kernels:
            self._console.tell(f"There is no kernel {name}.")
        elif name:
            await self._submit(command(name))

    async def _accept(self) -> None:
        name = await self._console.ask("Which kernel to accept, such as k3? (empty: none)")
        if name:
            await self._submit(c.AcceptKernel(name, await self._console.ask("Why? The journal records it:")))

    async def _answer(self) -> None:
        calls = calls_by_hand(self._bridge.state_now)
        if not calls:
            self._console.tell("No prompt awaits your answer.")
            return
        self._console.tell(f"Prompt {calls[0].id}:", self._bridge.read_blob(calls[0].prompt))
        name = await self._console.ask("File with the reply (empty: later):")
        if name:
            try:
                reply = await asyncio.to_thread(Path(name).expanduser().read_text, encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                self._console.tell(f"{name} cannot be read: {error}")
                return
            await self._attempt(self._bridge.answer(calls[0], reply))

    async def _reopen_ideas(self) -> None:
        self._later.clear()
        if not self._open_ideas():
            self._console.tell("No idea awaits approval.")

    async def _write_idea(self) -> None:
        title = await self._console.ask("Title of the idea (empty: none):")
        if not title:
            return
        rationale = await self._console.ask("Rationale on one line:")
        category = await self._console.choose("Category?", CATEGORIES, "Other")
        parent = await self._console.ask("Parent kernel, such as k3 (empty: none):")
        text = IdeaText(title, CATEGORIES[category] if category is not None else "other", rationale)
        await self._submit(c.WriteIdea(text, parent or None))

    async def _note(self) -> None:
        if text := await self._console.ask("Note (empty: none):"):
            await self._submit(c.AddNote("", text))

    async def _mode(self) -> None:
        modes = ("ask", "ask:30", "ask:120", "autopilot")
        words = ("ask", "ask, then approve after 30 seconds", "ask, then approve after 2 minutes", "autopilot")
        chosen = await self._console.choose("Who approves ideas?", words, "As it is")
        if chosen is not None:
            await self._submit(c.SetMode(modes[chosen]))

    async def _rounds(self) -> None:
        text = await self._console.ask("Number of rounds (empty: as it is):")
        if (number := whole_number(text, LARGEST_COUNT)) is not None:
            await self._submit(c.SetLimits(replace(self._bridge.state_now.limits, rounds=number)))
        elif text:
            self._console.tell(f"{quoted(text)} is not a number of rounds from 1 to {LARGEST_COUNT}.")

    async def _end(self) -> None:
        if await self._console.choose("End the session and cancel unfinished kernels?", ("End it",), "No") is not None:
            await self._submit(c.EndSession("ended by the engineer"))

    async def _submit(self, command: c.Command) -> None:
        await self._attempt(self._bridge.submit(command))

    async def _attempt(self, request: Awaitable[None]) -> None:
        try:
            await request
        except EspalierError as error:
            self._console.tell(f"Not done: {error}")
        else:
            self._console.tell("Done.")
