"""Connects the terminal UI to a session: reads its source, submits commands, keeps its search running.

Of the terminal UI only this module and ``tui/opener.py`` import ``engine.session``; it imports no widgets and no torch. A
screen asks its ``Bridge`` what is possible (``can``, ``transport``), never which kind of source it holds.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from engine.domain import columns, queries
from engine.domain.commands import AnswerCall, Command
from engine.domain.device_waits import is_free
from engine.domain.errors import CommandRejected, EspalierError, JournalCorrupt, ProposerError
from engine.domain.events import Entry
from engine.domain.folds import advance
from engine.domain.model import PLAYBOOK, Blob, Dialect
from engine.domain.settings import ModelSettings
from engine.domain.state import Kernel, ModelCall, SessionState
from engine.domain.work import WorkKey, WorkKind
from engine.ideas.authoring import unusable_reply
from engine.ideas.factory import check_programs
from engine.ideas.mix import PASTE, check_models, proposers_of
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.journal.lock import unwritable_error
from engine.journal.shipped import is_shipped
from engine.report.text.shell import quoted
from engine.session import factory, seeds
from engine.session.devices import default_workload
from engine.session.dispatch import dispatch_command
from engine.session.factory import NewSession, SavedSession, find_problem
from engine.session.follow import JoinedSource
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped
from engine.session.ports import Say
from engine.session.replay import Landmark, ReplaySource
from engine.session.seeds import Seed, check_dialect, check_session_runs, needed_device, read_seed, seed_from_text
from engine.session.source import Batch, Capability, SessionSource
from engine.session.telemetry import LoadMonitor, open_monitor
from tui.viewmodel.steps import StepLog

_LARGE_BATCH = 2000
_ENTRIES_KEPT = 5000
"""Entries kept in memory for the events pane; the journal has the rest."""
_TEXTS_KEPT = 256
_WRITER_SECONDS = 2.0
"""How often a session that does not run here is asked for its writer."""

__all__ = [
    "Bridge", "Capability", "Landmark", "NewSession", "SavedSession", "Say", "Seed", "check_dialect", "check_settings",
    "default_workload", "find_problem", "read_seed", "seed_from_text", "writer_error",
]  # fmt: skip


def check_settings(models: ModelSettings) -> None:
    """Raises ProposerError for settings that name something unknown, or a program that is not installed."""
    check_models(models)
    check_programs(models)


def writer_error(name: str) -> str:
    """What is wrong with the name of a writer or proposer, or with its program; empty if nothing is."""
    try:
        check_settings(ModelSettings(writer=name))
    except ProposerError as error:
        return str(error)
    return ""


def _shell_name(folder: Path) -> str:
    try:
        by_name = store.resolve(folder.name).resolve() == folder.resolve()
    except EspalierError:
        by_name = False
    return quoted(folder.name if by_name and not folder.name.startswith("-") else str(folder))


class Bridge:
    """A session's source, with everything that screens need from it.

    The app owns ``pump`` and ``run`` as workers: a worker dies with the node that started it, and a search must outlive its
    screens.
    """

    def __init__(
        self,
        source: SessionSource,
        folder: Path,
        *,
        live: LiveSession | None = None,
        joined: JoinedSource | None = None,
        transport: ReplaySource | None = None,
        monitor: LoadMonitor | None = None,
    ) -> None:
        """``live``, ``joined``, ``transport``: ``source`` again, if it runs here, runs elsewhere and is steered, or can seek.

        ``monitor`` samples the device.
        """
        self.source = source
        self.folder = folder
        self.name = folder.name
        self.shell_name = _shell_name(folder)
        """The session as an argument of ``espalier``."""
        self.ships = is_shipped(folder)
        """Whether it is a recording that ships with the program, which only a fork continues."""
        self.transport = transport
        """Play, pause and seek; ``None`` if the source cannot seek."""
        self.state: SessionState = source.state
        self.entries: list[Entry] = []
        """The latest entries up to ``state``; a new list after a seek."""
        self.state_before = SessionState()
        """The state before the first of ``entries``."""
        self.progress: dict[WorkKey, str] = {}
        """Running work → its latest progress message."""
        self.start = StepLog()
        """The steps of the preparation while this bridge was open."""
        self._start_texts: list[str] = []
        self._first_seen: dict[WorkKey, float] = {}
        self._finished: dict[str, tuple[float, int]] = {}
        self.stopped: Mapping[WorkKey, str] = {}
        """Work that the engine failed to do → reason; it waits for ``retry``."""
        self.closed = False
        self.is_run = source.is_run
        """Whether work that was begun goes on."""
        self.fault = ""
        """Why the source can no longer be read or written; empty while it can."""
        self._monitor = monitor
        self._live = live
        self._writable: LiveSession | JoinedSource | None = live or joined
        self._blobs = Blobs(folder)
        self._texts: dict[Blob, str] = {}
        self._resume = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []
        if live is not None:
            live.on_steered(self._resume.set)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after every change of what a screen shows, but for the clock. Returns what stops that."""
        self._watchers.append(changed)
        return partial(self._watchers.remove, changed)

    def _tell(self) -> None:
        for changed in tuple(self._watchers):
            changed()

    def can(self, capability: Capability) -> bool:
        return capability in self.source.capabilities

    @property
    def runs_here(self) -> bool:
        """Whether this process runs the search."""
        return self._live is not None

    @property
    def state_now(self) -> SessionState:
        """The source's state. It may be ahead of ``state`` by commands submitted a moment ago."""
        return self.source.state

    @property
    def in_hand(self) -> frozenset[WorkKey]:
        """Work running in this process."""
        return self._live.in_hand if self._live is not None else frozenset()

    @property
    def device_load(self) -> str:
        """The device's load as text; empty without a reading."""
        latest = self._monitor.latest if self._monitor is not None else None
        return latest.text if latest is not None else ""

    @property
    def deadline(self) -> float | None:
        """When open ideas are approved automatically (seconds since the epoch)."""
        return self._live.deadline if self._live is not None and not self.closed else None

    def read_blob(self, name: Blob) -> str:
        """A blob as text. Raises JournalCorrupt if it is missing or damaged."""
        if name not in self._texts:
            if len(self._texts) > _TEXTS_KEPT:
                self._texts.clear()
            self._texts[name] = self._blobs.text(name)
        return self._texts[name]

    def blob_path(self, name: Blob) -> Path:
        """The path of a blob, for programs that read a file."""
        return self._blobs.path(name)

    def code_of(self, kernel: Kernel) -> str:
        """The kernel's code; a comment with the reason if it cannot be read."""
        try:
            return self.read_blob(kernel.source)
        except JournalCorrupt as error:
            return f"// {error}\n"

    def all_entries(self) -> Sequence[Entry]:
        """All recorded entries, read from the journal. Raises JournalError."""
        return self.transport.entries if self.transport is not None else journal.read(self.folder).entries

    def empty_kernel(self) -> tuple[str, str]:
        """(file name, text) of an empty kernel for this session's device; comments explain each operand."""
        preparation, device = self.state.preparation, self.state.device
        if preparation is None or device is None:
            return "kernel.cpp", ""
        asked = self.state.opened.settings.dialect if self.state.opened is not None else ""
        return seeds.empty_kernel(device, preparation.signature, asked)

    def writers(self) -> tuple[tuple[str, str], ...]:
        """(name, what it is) of the writers that an idea can name, those of the session first."""
        models = self.state.models
        used = dict.fromkeys(name for name in proposers_of(models) if name not in factory.KEYLESS_PROPOSERS)
        others = ((PLAYBOOK, "code that ships with the problem"), (PASTE, "you paste the reply of any model"))
        return (*((name, "used in this session") for name in used), *others)

    def work_ages(self, now: float) -> Mapping[WorkKey, float]:
        """Running work → seconds since it was first seen here. Also times the steps of the preparation."""
        for text in self._start_texts:
            self.start.add(text, now)
        self._start_texts.clear()
        started = self.state.started
        if not any(work.kind == WorkKind.PREPARE for work in started):
            self.start.finish(now)
        for work in self._first_seen.keys() - started.keys():
            seconds, times = self._finished.get(work.kind, (0.0, 0))
            self._finished[work.kind] = (seconds + now - self._first_seen[work], times + 1)
        self._first_seen = {work: self._first_seen.get(work, now) for work in started}
        return {work: now - seen for work, seen in self._first_seen.items()}

    def mean_seconds(self) -> Mapping[str, float]:
        """Kind of work → mean seconds that such work took while this bridge was open."""
        return {kind: seconds / times for kind, (seconds, times) in self._finished.items()}

    async def submit(self, command: Command) -> None:
        """Raises CommandRejected with the reason, JournalError if the command could not be recorded."""
        self._check_folder()
        await self.source.submit(command)
        self.state = self.source.state  # shown immediately; the entries follow with the next batch
        self._resume.set()
        self._tell()

    def check_dialect(self, seed: Seed) -> None:
        """Raises ProblemError if the session's device does not run the seed's dialect."""
        if label := queries.device_label(self.state):
            check_session_runs(seed.kernel, label)

    def runs(self, dialect: Dialect) -> bool:
        """Whether the session's device runs kernels of this dialect."""
        label = queries.device_label(self.state)
        return not (label and needed_device(dialect, label))

    async def plant(self, seed: Seed, *, parent: str | None = None, idea: str | None = None, title: str = "") -> None:
        """Add a kernel by hand.

        Raises:
            ProblemError: the session's device does not run this dialect.
            CommandRejected: the rules reject it, or this source takes no commands.
        """
        opened = self.state.opened
        if self._writable is None or opened is None:
            raise CommandRejected("this session is only followed or replayed: open it to add a kernel")
        self.check_dialect(seed)
        workloads = columns.workloads(self.state)
        await self.submit(seeds.seed_command(self._writable.store_blob, seed, parent, idea, title, workloads))

    async def dispatch(self) -> None:
        """Add one kernel that runs, on each shape of a suite, the best kernel there.

        Raises CommandRejected where there is nothing to choose from, JournalError if a kernel's code cannot be read.
        """
        if self._writable is None:
            raise CommandRejected("this session is only followed or replayed: open it to add a kernel")
        read = partial(seeds.recorded_code, self.folder)
        await self.submit(dispatch_command(self.state_now, read, self._writable.store_blob))

    def unusable_reply(self, call: ModelCall, reply: str) -> str:
        """Why a reply does not answer a prompt; empty if it does."""
        return unusable_reply(self.state_now, call, reply)

    async def answer(self, call: ModelCall, reply: str) -> None:
        """Answer a prompt by hand. Raises CommandRejected, JournalError."""
        if self._writable is None:
            raise CommandRejected("this session is only followed or replayed: open it to answer prompts")
        await self.submit(AnswerCall(call.id, self._writable.store_blob(reply.encode("utf-8", "replace"))))

    async def retry(self) -> None:
        """Retry failed work. Raises CommandRejected if the session does not run here, JournalError like ``submit``."""
        if self._live is None:
            raise CommandRejected("this session does not run here: open it to retry")
        self._check_folder()
        self.stopped = {}
        await self._live.retry()
        self._resume.set()
        self._tell()

    def fail(self, reason: str) -> None:
        """The source can no longer be read or written."""
        self.fault = reason
        self._tell()

    def play_or_pause(self) -> None:
        """Play a source that can seek, or pause it."""
        transport = self.transport
        if transport is not None:
            if transport.playing:
                transport.pause()
            else:
                transport.play()
            self._tell()

    def set_speed(self, speed: float) -> None:
        """Play a source that can seek at this speed."""
        if self.transport is not None:
            self.transport.speed = speed
            self._tell()

    async def pump(self) -> None:
        """Read the source until it is closed."""
        beside = [asyncio.create_task(one) for one in (self._listen(), self._watch_writer())]
        try:
            async for batch in self.source.batches():
                self._absorb(batch)
                await self._forget_early_entries()
                if len(batch.entries) > _LARGE_BATCH:
                    gc.freeze()  # these objects stay: traversing them in a collection would stall the screen
        finally:
            for task in beside:
                task.cancel()

    async def run(self) -> None:
        """Search while the session is open here; after it ended or stopped, resume when a command is submitted.

        Raises JournalError if the journal can no longer be written.
        """
        live = self._live
        while live is not None and not self.closed:
            self._resume.clear()
            outcome = await live.run()
            self.stopped = outcome.reasons if isinstance(outcome, EngineStopped) else {}
            self._tell()
            await self._resume.wait()

    async def close(self) -> None:
        """Close the session; interrupted work is repeated when the session is opened again."""
        if not self.closed:
            self.closed = True
            if self._monitor is not None:
                self._monitor.close()
            await self.source.close()

    def _check_folder(self) -> None:
        """Raises JournalUnwritable if the journal was deleted: writes to it would succeed and be lost."""
        if self._live is not None:
            try:
                (self.folder / journal.NAME).stat()
            except OSError as error:
                raise unwritable_error(self.folder, error) from error

    def _absorb(self, batch: Batch) -> None:
        if batch.entries:
            self.entries.extend(batch.entries)
        else:
            self.entries = list(self.transport.entries[: self.transport.position]) if self.transport is not None else []
        self.state = batch.state
        self.stopped = {work: reason for work, reason in self.stopped.items() if work in batch.state.broken}
        self.progress = {work: text for work, text in self.progress.items() if work in batch.state.started}
        self._tell()

    async def _forget_early_entries(self) -> None:
        """Keep the latest entries only. Those before are folded on a thread: the screen goes on."""
        if len(self.entries) > 2 * _ENTRIES_KEPT and self.transport is None:
            early = self.entries[:-_ENTRIES_KEPT]
            self.state_before = await asyncio.to_thread(advance, self.state_before, early)
            self.entries = self.entries[len(early) :]

    async def _watch_writer(self) -> None:
        """Keep ``is_run`` right while another process may run the session, or end."""
        while not self.closed:
            is_run = self.source.is_run
            if is_run != self.is_run:
                self.is_run = is_run
                self._tell()
            await asyncio.sleep(_WRITER_SECONDS)

    async def _listen(self) -> None:
        async for message in self.source.progress():
            self.progress[message.work] = "" if is_free(message.text) else message.text  # the work goes on by its own name
            if message.work.kind == WorkKind.PREPARE:
                self._start_texts.append(message.text)
            self._tell()


def live_bridge(live: LiveSession) -> Bridge:
    """A bridge to a session that runs in this process."""
    state = live.state
    label = state.device.label if state.device is not None else state.opened.device if state.opened is not None else "cpu"
    return Bridge(live, live.folder, live=live, monitor=open_monitor(label))
