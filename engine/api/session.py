"""``espalier.Session``: a session for programs and notebooks, whoever holds it.

A session that runs here runs in a thread with its own event loop. One that another process holds is steered through its inbox
and followed in its journal. Every method is safe from any thread and blocks until it is done.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from engine.api.notebook import session_html
from engine.domain import columns, queries, regimes
from engine.domain import commands as c
from engine.domain import events as e
from engine.domain.errors import CommandRejected, JournalError
from engine.domain.folds import advance
from engine.domain.model import CATEGORIES, ENGINEER, Author, IdeaText, Problem
from engine.domain.settings import Limits, Settings, check_choices, default_strategy
from engine.domain.state import Kernel, SessionState
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.journal.lock import is_written, require_writable
from engine.problem import catalog
from engine.report.facts.summary import Summary, summarise
from engine.session import factory
from engine.session.devices import checked_device, default_workload
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped, Outcome, Until
from engine.session.ports import Say
from engine.session.requirements import session_device
from engine.session.seeds import Seed, check_session_runs, read_seed, seed_command, seed_of
from engine.session.steer import Commands, steer
from engine.toolchain.kernel_file import KernelCode

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_POLL = 0.1


class Session:
    """A session. Made by ``Session.new`` or ``Session.open``; ``close``, or leaving its context, releases what it holds."""

    def __init__(self, folder: Path, by: Author = ENGINEER) -> None:
        """Use ``new`` or ``open``."""
        self.folder = folder
        self.author = by
        self._tail = journal.tail(folder)
        self._entries: list[e.Entry] = []
        self._state = SessionState()
        self._reading = threading.Lock()
        self._host: _Host | None = None
        self._refresh()
        if not self._entries and not is_written(folder):
            journal.read(folder)  # says what is wrong: no process will fill it

    @classmethod
    def open(cls, session: str | Path, *, by: Author = ENGINEER) -> Self:
        """A session by its name or folder. Reads it and runs nothing; ``run`` and ``start`` continue its search.

        Raises JournalError if there is none, or if it cannot be read.
        """
        return cls(store.resolve(str(session)), by)

    @classmethod
    def new(
        cls,
        problem: str | Path | Problem,
        *,
        device: str | None = None,
        workload: str | None = None,
        suite: str | None = None,
        proposer: str = "playbook",
        mode: str = "ask",
        settings: Settings | None = None,
        limits: Limits | None = None,
        folder: str | Path | None = None,
        seeds: str | Path | KernelCode | Sequence[str | Path | KernelCode] = (),
        by: Author = ENGINEER,
        say: Say = lambda text: None,
    ) -> Self:
        """Create a session, ready to run here.

        Args:
            problem: a shipped name, a folder, or a KernelBench-format file.
            device: ``cpu`` or ``cuda:N``; by default the first GPU, else the CPU.
            suite: judge kernels on the workloads of this suite together, instead of on ``workload``.
            proposer: as ``espalier run --proposer``; ``agent`` leaves ideas and code to you and to coding agents.
            mode: who approves ideas: ``ask``, ``ask:SECONDS`` or ``autopilot``.
            settings: all other settings; ``workload``, ``proposer`` and ``limits`` replace theirs.

        Raises:
            EspalierError: bad input; then nothing is left on disk. UntrustedError for a reference that was not allowed.
        """
        asked = problem if isinstance(problem, Problem) else catalog.find(str(problem))
        label = checked_device(device)
        given = settings if settings is not None else Settings(default_strategy(proposer, ""), regime=regimes.AUTO)
        forever = Limits(rounds=None, plateau=None)
        wanted = limits or (settings.limits if settings else forever if proposer == "agent" else Limits())
        name = workload or (settings.workload if settings else default_workload(label))
        planted = tuple(_seed(one, {}) for one in ((seeds,) if isinstance(seeds, str | Path | KernelCode) else seeds))
        chosen = replace(_replaced(given, name, proposer, wanted), suite=suite or given.suite)
        check_choices(chosen.tolerance, (chosen.baseline, *chosen.others), mode)
        request = factory.NewSession(asked, label, chosen, mode, Path(folder) if folder is not None else None, planted)
        host = _Host(lambda: factory.begin(request, say))
        try:
            session = cls(host.live.folder, by)
        except BaseException:
            host.close()
            raise
        session._host = host
        return session

    @property
    def name(self) -> str:
        return store.short_name(self.folder)

    @property
    def state(self) -> SessionState:
        """The state now, whoever writes the session. Raises JournalError if it can no longer be read."""
        return self._refresh()

    @property
    def kernels(self) -> Mapping[str, Kernel]:
        return self.state.kernels

    @property
    def incumbent(self) -> Kernel | None:
        return queries.incumbent(self.state)

    @property
    def summary(self) -> Summary:
        """What ``espalier run --json`` prints."""
        return summarise(self.state, self.folder)

    @property
    def held_here(self) -> bool:
        """Whether this object holds the session."""
        return self._host is not None

    def code(self, kernel: str) -> str:
        """A kernel's code. Raises CommandRejected for an unknown kernel, JournalCorrupt if the code is damaged."""
        return self.text(self.kernel(kernel).source)

    def text(self, blob: str) -> str:
        """A payload of the session as text. Raises JournalCorrupt."""
        return Blobs(self.folder).text(blob)

    def kernel(self, kernel: str) -> Kernel:
        """A kernel by its id. Raises CommandRejected for an unknown one."""
        found = self.kernels.get(kernel)
        if found is None:
            raise CommandRejected(f"unknown kernel {kernel[:80]!r} in {self.folder.name}")
        return found

    def submit(self, commands: Commands | c.Command) -> tuple[e.Entry, ...]:
        """Submit one command, or several made from the present state; returns the entries that they caused.

        Raises CommandRejected with the reason, JournalError if they cannot be recorded.
        """
        wanted: Commands = commands if callable(commands) else lambda _: [commands]
        if self._host is None:
            return steer(self.folder, wanted, self.author).entries
        return self._host.call(_submitted(self._host.live, wanted, self.author))

    def propose(
        self,
        title: str,
        rationale: str = "",
        *,
        category: str = CATEGORIES[0],
        parent: str | None = None,
        predicted: float | None = None,
        expected: str = "",
        risks: str = "",
        branch: int | None = None,
        approve: bool = False,
    ) -> str:
        """Add an idea; its id. It awaits approval where the session's mode asks for it, unless ``approve``.

        Raises CommandRejected: no title, an unknown category or parent, or an agent that approves.
        """
        text = IdeaText(title, category, rationale, predicted, expected=expected, risks=risks)
        entries = self.submit(c.WriteIdea(text, parent, branch, approve))
        return next(one.event.ideas[0].id for one in entries if isinstance(one.event, e.IdeasProposed))

    def approve(self, *ideas: str) -> None:
        """Approve ideas; without arguments every idea that awaits approval."""
        self.submit(c.SelectIdeas(ideas))

    def reject(self, idea: str, reason: str = "") -> None:
        """Reject an idea; its proposer reads the reason."""
        self.submit(c.RejectIdea(idea, reason))

    def seed(
        self,
        kernel: str | Path | KernelCode,
        *,
        idea: str | None = None,
        parent: str | None = None,
        title: str = "",
        tunables: Mapping[str, int] | None = None,
    ) -> str:
        """Add a kernel: a file, ``SESSION:K``, or ``espalier.code(text, name)``; its id. A running session then evaluates it.

        Raises KernelCodeError, ProblemError if the session's device does not run it, CommandRejected.
        """
        seed = _seed(kernel, tunables or {})
        check_session_runs(seed.kernel, queries.device_label(self.state))
        entries = self.submit(
            lambda view: [seed_command(view.store_blob, seed, parent, idea, title, columns.workloads(view.state))]
        )
        return next(one.event.kernel for one in entries if isinstance(one.event, e.KernelDrafted))

    def race(self, kernel: str, against: str | None = None) -> None:
        """Race a measured kernel against another one, by default the incumbent. A running session then runs the race."""
        self.submit(c.RaceKernel(kernel, against))

    def note(self, text: str, on: str = "") -> None:
        """Add a note to the session, a kernel, an idea or a round."""
        self.submit(c.AddNote(on, text))

    def run(self, until: Until | str = Until.IDLE) -> Outcome:
        """Continue the search here until an outcome holds: ``idle`` (it ends or you must decide), ``round`` or ``closed``.

        Raises JournalLocked if another process holds the session, UntrustedError, EspalierError.
        """
        host = self._hosted()
        host.pause()
        return host.call(host.live.run(Until(until)))

    def start(self, say: Say = lambda text: None) -> None:
        """Keep the search running in the background until ``close``, also after a wait for a decision. Raises like ``run``.

        ``stopped`` says why it stopped; ``start`` then continues.
        """
        self._hosted(say).start(self.author)

    @property
    def stopped(self) -> Mapping[str, str]:
        """Work that the engine could not do → why, in a session started here; ``session`` if it cannot be recorded."""
        return self._host.stopped if self._host is not None else {}

    def wait(self, condition: Callable[[SessionState], T | None], timeout: float | None = None) -> T:
        """Wait until the condition gives a value for the state. Raises TimeoutError after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if found := condition(self.state):
                return found
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: nothing happened within {timeout:g} s")
            time.sleep(_POLL)

    def events(self, *, follow: bool = False, from_seq: int = 0) -> Iterator[e.Entry]:
        """The entries of the journal from ``from_seq`` on; with ``follow`` also those to come, until the session closes."""
        seen = from_seq
        while True:
            self._refresh()
            for entry in self._entries[seen:]:
                seen += 1
                yield entry
            if not follow or self._state.closed is not None:
                return
            time.sleep(_POLL)

    def close(self) -> None:
        """Stop what runs here and release the session; interrupted work is repeated when it is opened again."""
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session({self.name!r})"

    def _repr_html_(self) -> str:
        return session_html(self.state, self.folder)

    def _refresh(self) -> SessionState:
        with self._reading:
            news = self._tail.poll()
            if news:
                self._entries.extend(news)
                self._state = advance(self._state, news)
            return self._state

    def _hosted(self, say: Say = lambda text: None) -> _Host:
        if self._host is None:
            require_writable(self.folder)
            label = session_device(self.state)
            self._host = _Host(lambda: factory.resume(factory.SavedSession(self.folder, label), say))
        return self._host


class _Host:
    """A live session in a thread with its own event loop."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, LiveSession]]) -> None:
        """Raises what opening raises."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="espalier session", daemon=True)
        self._thread.start()
        self._running: asyncio.Task[None] | None = None
        self.stopped: Mapping[str, str] = {}
        try:
            self.live = self.call(opened())
        except BaseException:
            self._end()
            raise

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, by: Author) -> None:
        self.call(self._start(by))

    async def _start(self, by: Author) -> None:
        if self.stopped:
            await self._pause()
            await self.live.retry(by)
            self.stopped = {}
        if self._running is None:
            self._running = asyncio.create_task(self._keep_running())

    async def _keep_running(self) -> None:
        steered = asyncio.Event()
        self.live.on_steered(steered.set)
        while True:
            steered.clear()
            try:
                outcome = await self.live.run()
            except JournalError as error:
                self.stopped = {"session": str(error)}
            except Exception as error:
                _LOG.exception("the search of %s stopped", self.live.folder)
                self.stopped = {"session": f"internal error: {type(error).__name__}: {error}"}
            else:
                stopped = outcome.reasons if isinstance(outcome, EngineStopped) else {}
                self.stopped = {str(key): why for key, why in stopped.items()}
            await steered.wait()

    def pause(self) -> None:
        """End the background search, for a run whose outcome is awaited."""
        self.call(self._pause())

    async def _pause(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    def close(self) -> None:
        try:
            self.pause()
            self.call(self.live.close())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _submitted(live: LiveSession, commands: Commands, by: Author) -> tuple[e.Entry, ...]:
    return tuple([entry for command in commands(live) for entry in await live.submit(command, by)])


def _seed(kernel: str | Path | KernelCode, tunables: Mapping[str, int]) -> Seed:
    return seed_of(kernel, tunables) if isinstance(kernel, KernelCode) else read_seed(str(kernel), tunables)


def _replaced(given: Settings, workload: str, proposer: str, limits: Limits) -> Settings:
    return replace(given, workload=workload, source=proposer, limits=limits)
