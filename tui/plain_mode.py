"""The plain mode: a session steered by lines and numbered choices, for screen readers, dumb terminals and pipes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from engine.domain import regimes
from engine.domain.errors import EspalierError, JournalLocked, UntrustedError
from engine.domain.settings import Settings, default_strategy
from engine.domain.trust import PathKind, TrustQuestion
from engine.journal import store
from engine.report.text import trust
from tui.bridge import Bridge, NewSession, SavedSession, Say, default_workload
from tui.console import Console, InputEnded
from tui.opener import SessionOpener
from tui.plain_session import PlainSession
from tui.viewmodel.farewell import farewell
from tui.viewmodel.notices import joined_words

Opening = Callable[[Say], Awaitable[Bridge]]


class PlainMode:
    """Opens sessions and lists them, as the app does on a screen."""

    def __init__(self, console: Console, opener: SessionOpener) -> None:
        self._console = console
        self._opener = opener

    async def run(self, action: str, subject: object) -> None:
        """``action`` and ``subject``: as for ``tui.app.main``. Raises EspalierError."""
        with contextlib.suppress(InputEnded):
            match action, subject:
                case "new", NewSession() as request:
                    await self._run_live(lambda say: self._opener.begin(request, say), None)
                case "open", SavedSession() as saved:
                    await self._run_live(lambda say: self._opener.resume(saved, say), saved)
                case "replay", Path() as folder:
                    await self._show(self._opener.replay(folder))
                case "follow", Path() as folder:
                    await self._show(self._opener.follow(folder))
                case _:
                    await self._home()

    async def _home(self) -> None:
        """Choose a session or a problem, until the engineer quits."""
        while True:
            found = await asyncio.to_thread(store.summaries)
            if fault := await asyncio.to_thread(store.root_fault):
                self._console.tell(fault)
            problems = await asyncio.to_thread(self._opener.problems)
            words = [f"Open session {one.name}, {_state(one)}" for one in found]
            words += [f"New session on {one.name}: {one.title}" for one in problems]
            chosen = await self._console.choose("Espalier. What next?", words, "Quit")
            if chosen is None:
                return
            try:
                if chosen >= len(found):
                    await self._begin(problems[chosen - len(found)].name)
                elif found[chosen].shipped:
                    await self._show(self._opener.replay(found[chosen].folder))
                else:
                    await self.run("open", SavedSession(found[chosen].folder))
            except EspalierError as error:
                self._console.tell(str(error))

    async def _begin(self, name: str) -> None:
        device = (await asyncio.to_thread(self._opener.devices))[0][0]
        problem = next(one for one in self._opener.problems() if one.name == name)
        settings = Settings(workload=default_workload(device), regime=regimes.AUTO)
        request = NewSession(problem, device, replace(settings, strategy=default_strategy(settings.source, "")), "ask")
        await self.run("new", request)

    async def _run_live(self, opening: Opening, saved: SavedSession | None) -> None:
        """Open a session to run it; if another process runs it, steer it there."""
        try:
            bridge = await opening(self._console.tell)
        except UntrustedError as error:
            if await self._trusts(error.question):
                await self._run_live(opening, saved)
            return
        except JournalLocked:
            if saved is None:
                raise
            self._console.tell(f"{joined_words(saved.options())}.")
            bridge = self._opener.join(saved.folder)
        await self._show(bridge)

    async def _trusts(self, asked: TrustQuestion) -> bool:
        """Ask whether this may run here; whether it may."""
        self._console.tell("This comes from elsewhere. It would run:")
        self._console.tell(*(f"{name} {span.text}".strip() for name, span in trust.rows(asked)))
        is_session = asked.kind is PathKind.SESSION
        chosen = await self._console.choose("Allow it?", ("Allow it", *(("Replay it",) if is_session else ())), "No")
        if chosen == 0:
            await asyncio.to_thread(self._opener.trust, asked)
        elif chosen == 1:
            await self._show(self._opener.replay(Path(asked.path)))
        return chosen == 0

    async def _show(self, bridge: Bridge) -> None:
        try:
            await PlainSession(self._console, bridge).run()
        finally:
            await bridge.close()
            if bridge.runs_here:
                self._console.tell(farewell(bridge.state_now, bridge.shell_name))


def _state(one: store.SessionSummary) -> str:
    if one.shipped:
        return "an example to replay"
    return {"closed": "ended", "unreadable": f"unreadable: {one.reason}"}.get(one.status, "open")


def main(
    action: str = "home",
    subject: object = None,
    *,
    opener: SessionOpener | None = None,
    lines_in: TextIO | None = None,
    out: TextIO | None = None,
) -> None:
    """Run the plain mode on standard input and output. Raises the EspalierError that ended it."""
    given = lines_in or sys.stdin
    if isinstance(given, io.TextIOWrapper):
        given.reconfigure(errors="replace")  # what is not of the locale's encoding is a wrong answer, not the end

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        console = Console(given, out or sys.stdout, interactive=given.isatty())
        await PlainMode(console, opener or SessionOpener()).run(action, subject)

    try:
        asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # SIGTERM ends it as Ctrl-C does
