"""Driving a live session without a screen: progress on standard error, signals, and how an outcome becomes an exit status."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from engine.cli.ending import BAD_INPUT, FAILED, INTERRUPTED, Ended, LogFile, end
from engine.cli.output import Moment, show, show_json
from engine.domain import commands as c
from engine.domain import queries
from engine.domain.state import SessionState, advance
from engine.journal import store
from engine.report import progress
from engine.report.summary import Summary, summarise
from engine.report.text import Line, Span, Tone, counted, fields, line, one_line
from engine.report.tree import evidence, heading, tree
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome, RoundEnded, SessionEnded, Until

T = TypeVar("T")
Search = Callable[[LiveSession], Awaitable[Outcome]]


def drive(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """An event loop for one command. SIGINT and SIGTERM cancel the work, which ends in good order; then KeyboardInterrupt."""
    _log_to_file()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _log_to_file() -> None:
    root = logging.getLogger()
    if not any(isinstance(handler, LogFile) for handler in root.handlers):
        root.addHandler(LogFile())


class Teller:
    """Says on standard error what happens in a session while it happens."""

    def __init__(self) -> None:
        self._began = time.time()
        self.moment = Moment()

    def say(self, text: str) -> None:
        """A word that a terminal shows until the next one."""
        self.moment.say(f"{self._stamp(time.time())}  {one_line(text)}")

    async def tell(self, live: LiveSession, from_seq: int) -> None:
        """One line for each entry that matters, from ``from_seq`` on, until the session is closed here."""
        state = SessionState()
        async for batch in live.batches():
            for entry in batch.entries:
                before, state = state, advance(state, (entry,))
                if entry.seq >= from_seq:
                    self._print(progress.lines(before, entry, state), entry.at)

    async def words(self, live: LiveSession) -> None:
        """What is under way, for a moment each."""
        async for word in live.progress():
            _, _, subject = word.work.partition(":")
            self.say(f"{subject.partition(':')[0]} {word.text}".strip())

    def _print(self, lines: list[Line], at: float) -> None:
        if lines:
            self.moment.clear()
            stamp = Span(f"{self._stamp(at)}  ", Tone.FAINT)
            show([(stamp, *spans) for spans in lines], err=True)

    def _stamp(self, at: float) -> str:
        return f"{max(0.0, at - self._began):7.1f} s"


async def search(live: LiveSession, how: Search, teller: Teller, from_seq: int = 0) -> tuple[SessionState, Outcome]:
    """Run a session as ``how`` says, tell what happens, and close it.

    Raises JournalError when it can no longer be recorded, BrokenPipeError when nobody reads standard error any more.
    """
    running: asyncio.Future[Outcome] | None = None
    telling = asyncio.create_task(teller.tell(live, from_seq))
    wording = asyncio.create_task(teller.words(live))

    def heard(task: asyncio.Task[None]) -> None:
        if running is not None and not task.cancelled() and task.exception() is not None:
            running.cancel()

    telling.add_done_callback(heard)
    try:
        async with live:
            running = asyncio.ensure_future(how(live))
            outcome = await running
    finally:
        told, _ = await asyncio.gather(telling, wording, return_exceptions=True)
        teller.moment.clear()
        if isinstance(told, OSError):
            raise told
    return live.state, outcome


async def to_the_end(live: LiveSession) -> Outcome:
    """To the end of the session, or to a decision of the engineer's."""
    return await live.run(Until.IDLE)


async def one_round(live: LiveSession) -> Outcome:
    """To the end of the round, or to a decision of the engineer's."""
    return await live.run(Until.ROUND)


async def one_round_approving(live: LiveSession) -> Outcome:
    """To the end of the round; what is undecided is approved."""
    while True:
        outcome = await live.run(Until.ROUND)
        if not isinstance(outcome, AwaitingEngineer) or not outcome.ideas:
            return outcome
        await live.submit(c.SelectIdeas(outcome.ideas))


def handle(folder: Path) -> str:
    """What to type for a session: its name where sessions usually are, else its folder."""
    return folder.name if folder.parent == store.sessions_root() else str(folder)


def typed(folder: Path) -> str:
    """``handle`` as a shell takes it for one word."""
    return shlex.quote(handle(folder))


def summary_of(state: SessionState, folder: Path) -> Summary:
    """The object of ``run --json``."""
    return summarise(state, str(folder.absolute()))


def print_session(state: SessionState, folder: Path, outcome: Outcome | None = None) -> None:
    """The tree, what its figures rest on, where the session is and what to type next."""
    session = ("session", Span(f"{folder.absolute()}{_stand(state, outcome)}"))
    steps = [("next", Span(words)) for words in _next(state, folder, outcome)]
    show([heading(state), "", *tree(state), "", *fields([*evidence(state), session, *steps])])
    if isinstance(outcome, AwaitingEngineer):
        show(["", *awaiting_lines(state)])


def awaiting_lines(state: SessionState) -> list[Line]:
    """The ideas that wait for a decision."""
    lines: list[Line] = []
    for idea in queries.pending_ideas(state):
        predicted = f", predicted {idea.text.predicted:g}×" if idea.text.predicted is not None else ""
        aim = f" on {idea.parent}" if idea.parent else ""
        lines.append(line("  ", Span(f"{idea.id}{aim} {one_line(idea.text.title)}", Tone.STRONG)))
        lines.append(line(Span(f"      {idea.text.category}{predicted}: {one_line(idea.text.rationale)}", Tone.FAINT)))
    return lines


def _stand(state: SessionState, outcome: Outcome | None) -> str:
    match outcome:
        case RoundEnded(number):
            return f", round {number} done"
        case AwaitingEngineer(calls=calls) if calls:
            return f", awaiting your reply to {counted(len(calls), 'prompt')}"
        case AwaitingEngineer(ideas) if ideas:
            return f", awaiting you on {counted(len(ideas), 'idea')}"
        case AwaitingEngineer(paused=paused) if paused is not None:
            return f", paused: {paused}"
        case AwaitingEngineer():
            return ", awaiting an idea of yours"
        case _:
            return f", ended: {state.closed}" if state.closed is not None else ", open"


def _next(state: SessionState, folder: Path, outcome: Outcome | None) -> list[str]:
    name = typed(folder)
    if isinstance(outcome, AwaitingEngineer) and outcome.calls:
        call = outcome.calls[0]
        return [f"espalier prompts {name} {call}, then espalier answer {name} {call} FILE, then espalier open {name}"]
    if isinstance(outcome, AwaitingEngineer) and outcome.paused is not None and not outcome.ideas:
        return [f"espalier continue {name}, then espalier open {name}"]
    if isinstance(outcome, AwaitingEngineer):
        return [f"espalier idea {name} approve [IDEA ...] or reject IDEA, then espalier open {name}"]
    if state.closed is None:
        return [f"espalier open {name}"]
    done = max(0, queries.last_round(state))
    lines = [f"espalier limits {name} --rounds {done + 3}, then espalier open {name}: three more rounds"]
    if queries.incumbent(state) is not None:
        lines.insert(0, f"espalier export {name} --format module: the best kernel as a KernelBench module")
    return lines


def conclude(state: SessionState, folder: Path, outcome: Outcome, *, as_json: bool) -> None:
    """Print what came of a search and leave with its exit status."""
    found = state.preparation
    if found is not None and not found.gate.verifiable and state.opened and not state.opened.settings.accept_unverifiable:
        raise Ended(BAD_INPUT, f"{state.opened.problem.name} is {state.closed}; --accept-unverifiable searches all the same")
    if isinstance(outcome, EngineStopped):
        (work, reason), *more = outcome.reasons.items()
        others = f" and {len(more)} more" if more else ""
        name = typed(folder)
        advice = f"nothing is lost, `espalier open {name}` goes on once that is put right"
        if work in state.called_off:
            advice = f"`espalier idea {name} add` writes an idea of yours, `espalier open {name}` asks again"
        raise Ended(BAD_INPUT, f"{work} could not be done{others}: {one_line(reason)}; {advice}")
    if as_json:
        show_json(summary_of(state, folder))
    else:
        print_session(state, folder, outcome)
    if isinstance(outcome, SessionEnded | RoundEnded):
        end(FAILED if queries.incumbent(state) is None else 0)


def interrupted(folder: Path) -> Ended:
    """What an interrupted search leaves behind."""
    return Ended(INTERRUPTED, f"interrupted; nothing is lost: `espalier open {typed(folder)}` goes on")
