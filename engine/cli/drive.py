"""Running a session without a screen: the event loop with its signals, and progress on standard error."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from engine.cli.output import TransientLine, show, timestamped
from engine.domain import commands as c
from engine.domain.state import SessionState, advance
from engine.journal.log_file import log_to_file
from engine.report.text import progress
from engine.report.text.lines import line, one_line, plain
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, Outcome, Until

T = TypeVar("T")
RunSession = Callable[[LiveSession], Awaitable[Outcome]]


class ProgressPrinter:
    """Prints progress on standard error, with the seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.time()
        self._transient = TransientLine()

    def show(self, text: str) -> None:
        """Show a line on a terminal until the next one."""
        self._transient.show(plain(timestamped(line(one_line(text)), time.time() - self._began)))

    def clear(self) -> None:
        self._transient.clear()

    async def print_entries(self, live: LiveSession, from_seq: int) -> None:
        """Print the lines of each entry from ``from_seq`` on, until the session is closed."""
        state = SessionState()
        async for batch in live.batches():
            past = tuple(entry for entry in batch.entries if entry.seq < from_seq)
            state, lines = progress.entry_lines(advance(state, past), batch.entries[len(past) :])
            if lines:
                self.clear()
                show([timestamped(spans, entry.at - self._began) for entry, spans in lines], err=True)

    async def show_progress(self, live: LiveSession) -> None:
        """Show what is under way, until the session is closed."""
        async for update in live.progress():
            self.show(f"{update.work.subject} {update.text}".strip())


def drive(work: Callable[[ProgressPrinter], Coroutine[Any, Any, T]]) -> T:
    """Run the work of one command in an event loop.

    SIGINT and SIGTERM cancel the work, which ends in good order; then KeyboardInterrupt is raised.
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

    Raises JournalError when it can no longer be recorded, BrokenPipeError when nobody reads standard error any more.
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
    """To the end of the session, or to a decision of the engineer's."""
    return await live.run(Until.IDLE)


async def run_round(live: LiveSession) -> Outcome:
    """To the end of the round, or to a decision of the engineer's."""
    return await live.run(Until.ROUND)


async def run_round_approving(live: LiveSession) -> Outcome:
    """To the end of the round; ideas that await a decision are approved."""
    while True:
        outcome = await live.run(Until.ROUND)
        if not isinstance(outcome, AwaitingEngineer) or not outcome.ideas:
            return outcome
        await live.submit(c.SelectIdeas(outcome.ideas))
