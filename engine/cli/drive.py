"""Running a session headless: the event loop with its signals, and progress on standard error."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from engine.cli.output import TransientLines, show, timestamped
from engine.cli.streams import is_terminal
from engine.cli.verbose_lines import VerboseLines
from engine.cli.verbosity import quiet, verbose
from engine.domain import commands as c
from engine.domain.device_waits import is_free, is_waiting
from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.domain.work import WorkKind
from engine.journal.blobs import Blobs
from engine.journal.log_file import log_to_file
from engine.report.text import progress
from engine.report.text.lines import Line, line, one_line
from engine.report.text.work import subject_words
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, Outcome, Until

T = TypeVar("T")
RunSession = Callable[[LiveSession], Awaitable[Outcome]]
LiveTable = Callable[[int], Sequence[Line]]
"""The lines of a table as it is now, at most this many."""
_SILENCE = 10.0
"""Seconds without a line after which a log gets the next progress of whatever runs."""


class ProgressPrinter:
    """Prints progress on standard error, with the seconds since it was made. --quiet: nothing; --verbose: every step."""

    def __init__(self) -> None:
        self._began = self._printed = time.time()
        self._transient = TransientLines()
        self._status: Line = ()
        self._table: LiveTable | None = None
        self._waits: set[str] = set()
        """Printed lines on leases that are waited for; the lease repeats them every few seconds."""
        self._unprinted: asyncio.TimerHandle | None = None
        """Prints what runs, once it has run for long."""
        self._quiet, self._verbose = quiet(), verbose()

    def show(self, text: str) -> None:
        """Show a line on a terminal until the next one; with --verbose, print it. Without a terminal, print whom a lease is
        waited for, and what runs after a long silence or for long."""
        if not is_terminal(sys.stderr):
            if is_waiting(text) or time.time() - self._printed > _SILENCE:
                self.step(text)
                return
            if not self._verbose and not self._quiet:
                self._print_later(text)
        spans = timestamped(line(one_line(text)), time.time() - self._began)
        if self._verbose:
            show([spans], err=True)
        elif not self._quiet:
            self._status = spans
            self._draw()

    def _print_later(self, text: str) -> None:
        """Print a line when there has been none for long, unless another step begins before; within an event loop."""
        self._forget_unprinted()
        with contextlib.suppress(RuntimeError):  # no event loop
            loop = asyncio.get_running_loop()
            self._unprinted = loop.call_later(self._printed + _SILENCE - time.time(), self.step, text)

    def _forget_unprinted(self) -> None:
        if self._unprinted is not None:
            self._unprinted.cancel()
            self._unprinted = None

    def step(self, text: str) -> None:
        """Print a line that stays. Whom a lease is waited for is printed when that changes."""
        self._forget_unprinted()
        if is_free(text):
            self._waits.clear()
        elif is_waiting(text):
            if text in self._waits:
                return
            self._waits.add(text)
        if not self._quiet:
            self._print([timestamped(line(one_line(text)), time.time() - self._began)])

    def clear(self) -> None:
        self._forget_unprinted()
        self._status = ()
        self._transient.clear()

    def keep(self, table: LiveTable | None) -> None:
        """Keep a table below the lines on a terminal, drawn again with every line; ``None``: no longer. --quiet: none."""
        self._table = table if not self._quiet else None
        self.clear()
        self._draw()

    def _print(self, lines: Sequence[Line]) -> None:
        """Print lines that stay, above what is overwritten."""
        self._printed = time.time()
        self.clear()
        show(lines, err=True)
        self._draw()

    def _draw(self) -> None:
        if not self._transient.active:
            return
        status = [self._status] if self._status else []
        room = self._transient.room - len(status)
        self._transient.show([*status, *(self._table(room) if self._table is not None and room > 0 else ())])

    async def print_entries(self, live: LiveSession, from_seq: int) -> None:
        """Print the lines of each entry from ``from_seq`` on, until the session is closed."""
        if self._quiet:
            return
        state, steps = SessionState(), VerboseLines(Blobs(live.folder).text)
        async for batch in live.batches():
            past = tuple(entry for entry in batch.entries if entry.seq < from_seq)
            state = advance(state, past)
            for entry in batch.entries[len(past) :]:
                before, state = state, advance(state, (entry,))
                lines = progress.lines(before, entry, state)
                if self._verbose:
                    lines += steps.lines(before, entry, state)
                if lines:
                    self._print([timestamped(spans, entry.at - self._began) for spans in lines])

    async def show_progress(self, live: LiveSession) -> None:
        """Show the progress of work, until the session is closed."""
        async for update in live.progress():
            if update.lasting:
                await asyncio.sleep(0)  # what the journal says of it is printed before
            say = self.step if update.lasting or update.work.kind == WorkKind.PREPARE else self.show
            say(f"{subject_words(update.work)} {update.text}".strip())


def drive(work: Callable[[ProgressPrinter], Coroutine[Any, Any, T]]) -> T:
    """Run the work of one command in an event loop.

    SIGINT and SIGTERM cancel the work and wait until it has cleaned up; then KeyboardInterrupt is raised.
    """
    log_to_file()
    printer = ProgressPrinter()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work(printer)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        printer.clear()


async def run_session(
    live: LiveSession, run: RunSession, printer: ProgressPrinter, from_seq: int = 0
) -> tuple[SessionState, Outcome]:
    """Run a session, print its progress, and close it.

    Raises JournalError when it can no longer be recorded, BrokenPipeError when standard error is closed.
    """
    running: asyncio.Future[Outcome] | None = None
    printing = asyncio.create_task(printer.print_entries(live, from_seq))
    showing = asyncio.create_task(printer.show_progress(live))

    def cancel_if_failed(task: asyncio.Task[None]) -> None:
        if running is not None and not task.cancelled() and task.exception() is not None:
            running.cancel()

    printing.add_done_callback(cancel_if_failed)
    try:
        async with live:
            running = asyncio.ensure_future(run(live))
            outcome = await running
    finally:
        printed, _ = await asyncio.gather(printing, showing, return_exceptions=True)
        printer.clear()
        if isinstance(printed, OSError):
            raise printed
    return live.state, outcome


async def run_to_end(live: LiveSession) -> Outcome:
    """Run until the session ends or awaits the engineer."""
    return await live.run(Until.IDLE)


async def run_round(live: LiveSession) -> Outcome:
    """Run until the round ends or the session awaits the engineer."""
    return await live.run(Until.ROUND)


async def run_round_approving(live: LiveSession) -> Outcome:
    """Run until the round ends; approve ideas awaiting approval."""
    while True:
        outcome = await live.run(Until.ROUND)
        if not isinstance(outcome, AwaitingEngineer) or not outcome.ideas:
            return outcome
        await live.submit(c.SelectIdeas(outcome.ideas))
