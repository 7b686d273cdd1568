"""The only door between the terminal UI and a session: reads its source, submits commands, keeps its search running.

Knows ``engine.session`` and nothing of widgets. A screen asks its ``Bridge`` what is possible (``can``, ``transport``), never
which kind of source it holds. ``SessionOpener`` opens sessions; tests replace it. No torch.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.domain.commands import AnswerCall, Command
from engine.domain.errors import CommandRejected, JournalCorrupt
from engine.domain.events import Entry
from engine.domain.model import Blob, Problem
from engine.domain.state import Kernel, ModelCall, SessionState, advance
from engine.domain.work import WorkKey
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.journal.lock import unwritable_error
from engine.session import devices, factory, fork, seeds
from engine.session.devices import default_workload
from engine.session.factory import NewSession, find_problem
from engine.session.follow import FollowSource
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped
from engine.session.ports import Say
from engine.session.replay import Landmark, ReplaySource
from engine.session.seeds import Seed, read_seed, seed_from_text
from engine.session.source import Batch, Capability, SessionSource
from engine.session.telemetry import LoadMonitor, open_monitor

_LARGE_BATCH = 2000
_ENTRIES_KEPT = 5000
"""Entries kept in memory for the story; the journal has the rest."""
_TEXTS_KEPT = 256

__all__ = [
    "Bridge", "Capability", "Landmark", "NewSession", "Say", "Seed", "SessionOpener", "default_workload", "find_problem",
    "read_seed", "seed_from_text",
]  # fmt: skip


class Bridge:
    """One source with all that the screens need of it.

    The app owns ``pump`` and ``run`` as workers: a worker dies with the node that started it, and a search must outlive every
    screen.
    """

    def __init__(
        self,
        source: SessionSource,
        folder: Path,
        *,
        live: LiveSession | None = None,
        transport: ReplaySource | None = None,
        monitor: LoadMonitor | None = None,
    ) -> None:
        """``live`` and ``transport`` are ``source`` again, where it runs or can seek; ``monitor`` samples its device."""
        self.source = source
        self.folder = folder
        self.name = folder.name
        self.transport = transport
        """Play, pause and seek, where the source has them."""
        self.state: SessionState = source.state
        self.entries: list[Entry] = []
        """The latest entries up to ``state``; another list after a seek."""
        self.state_before = SessionState()
        """The state before the first of ``entries``."""
        self.progress: dict[WorkKey, str] = {}
        """Key of the work under way → the latest message about it."""
        self.stopped: Mapping[WorkKey, str] = {}
        """Key of the work that the engine failed at → why; it waits for ``retry``."""
        self.closed = False
        self.fault = ""
        """Why the source can no longer be read or recorded."""
        self._monitor = monitor
        self._live = live
        self._blobs = Blobs(folder)
        self._texts: dict[Blob, str] = {}
        self._resume = asyncio.Event()

    def can(self, capability: Capability) -> bool:
        return capability in self.source.capabilities

    @property
    def state_now(self) -> SessionState:
        """The source's own state, which may be ahead of ``state`` by what was submitted a moment ago."""
        return self.source.state

    @property
    def in_hand(self) -> frozenset[WorkKey]:
        """Keys of the work under way in this process."""
        return self._live.in_hand if self._live is not None else frozenset()

    @property
    def device_load(self) -> str:
        """What the device is doing right now, in words; empty where there is no reading."""
        latest = self._monitor.latest if self._monitor is not None else None
        return latest.text if latest is not None else ""

    @property
    def deadline(self) -> float | None:
        """When the policy decides in the engineer's place (seconds since the epoch)."""
        return self._live.deadline if self._live is not None and not self.closed else None

    def read_blob(self, name: Blob) -> str:
        """A payload as text. Raises JournalCorrupt when it is missing or damaged."""
        if name not in self._texts:
            if len(self._texts) > _TEXTS_KEPT:
                self._texts.clear()
            self._texts[name] = self._blobs.text(name)
        return self._texts[name]

    def blob_path(self, name: Blob) -> Path:
        """Where a payload lies, for programs that would rather read a file."""
        return self._blobs.path(name)

    def code_of(self, kernel: Kernel) -> str:
        """The kernel's code; in its place, why it cannot be read."""
        try:
            return self.read_blob(kernel.source)
        except JournalCorrupt as error:
            return f"// {error}\n"

    def all_entries(self) -> Sequence[Entry]:
        """Everything that is recorded, read from the journal. Raises JournalError."""
        return self.transport.entries if self.transport is not None else journal.read(self.folder).entries

    def empty_kernel(self) -> tuple[str, str]:
        """(file name, text) of an empty kernel for this session's device, every operand explained."""
        preparation, device = self.state.preparation, self.state.device
        if preparation is None or device is None:
            return "kernel.cpp", ""
        return seeds.empty_kernel(device, preparation.signature)

    async def submit(self, command: Command) -> None:
        """Raises CommandRejected with the reason, JournalError when it could not be recorded."""
        self._check_folder()
        await self.source.submit(command)
        self.state = self.source.state  # shown at once; the entries follow with the next batch
        self._resume.set()

    async def plant(self, seed: Seed, *, parent: str | None = None, idea: str | None = None, title: str = "") -> None:
        """Bring a kernel in by hand.

        Raises:
            ProblemError: a dialect that this session's device does not run.
            CommandRejected: the rules do not allow it, or this source takes no commands.
        """
        opened = self.state.opened
        if self._live is None or opened is None:
            raise CommandRejected("nothing can be brought into a session that is only being watched")
        seeds.check_dialect(seed.kernel, self.state.device.label if self.state.device else opened.device)
        await self.submit(seeds.seed_command(self._live.store_blob, seed, parent, idea, title))

    async def answer(self, call: ModelCall, reply: str) -> None:
        """Bring the reply to a prompt that was given out by hand. Raises CommandRejected, JournalError."""
        if self._live is None:
            raise CommandRejected("prompts are answered where the session runs")
        await self.submit(AnswerCall(call.id, self._live.store_blob(reply.encode("utf-8", "replace"))))

    async def retry(self) -> None:
        """Owe again what the engine failed at. Raises CommandRejected when nothing runs here, JournalError like ``submit``."""
        if self._live is None:
            raise CommandRejected("nothing is run here: there is nothing to try again")
        self._check_folder()
        self.stopped = {}
        await self._live.retry()
        self._resume.set()

    async def pump(self) -> None:
        """Take in what the source records until it is closed; a screen looks at ``state`` when it pleases."""
        listening = asyncio.create_task(self._listen())
        try:
            async for batch in self.source.batches():
                self._absorb(batch)
                if len(batch.entries) > _LARGE_BATCH:
                    gc.freeze()  # these objects stay: a collection that traverses them would stop the screen
        finally:
            listening.cancel()

    async def run(self) -> None:
        """Search while the session is open here; after it ended or stopped, continue when something is submitted.

        Raises JournalError when it can no longer be recorded.
        """
        live = self._live
        while live is not None and not self.closed:
            self._resume.clear()
            outcome = await live.run()
            self.stopped = outcome.reasons if isinstance(outcome, EngineStopped) else {}
            await self._resume.wait()

    async def close(self) -> None:
        """Leave the session; what was under way is owed again when it is opened next."""
        if not self.closed:
            self.closed = True
            if self._monitor is not None:
                self._monitor.close()
            await self.source.close()

    def _check_folder(self) -> None:
        """A deleted journal takes what is written to it and keeps none of it. Raises JournalUnwritable."""
        if self._live is not None:
            try:
                (self.folder / journal.NAME).stat()
            except OSError as error:
                raise unwritable_error(self.folder, error) from error

    def _absorb(self, batch: Batch) -> None:
        if batch.entries:
            self.entries.extend(batch.entries)
            if len(self.entries) > 2 * _ENTRIES_KEPT and self.transport is None:
                dropped = len(self.entries) - _ENTRIES_KEPT
                self.state_before = advance(self.state_before, self.entries[:dropped])
                self.entries = self.entries[dropped:]
        else:
            self.entries = list(self.transport.entries[: self.transport.position]) if self.transport is not None else []
        self.state = batch.state
        self.stopped = {work: reason for work, reason in self.stopped.items() if work in batch.state.broken}
        self.progress = {work: text for work, text in self.progress.items() if work in batch.state.started}

    async def _listen(self) -> None:
        async for message in self.source.progress():
            self.progress[message.work] = message.text


class SessionOpener:
    """How sessions are begun and opened, and what a new one can choose from. Methods raise EspalierError with one line."""

    async def begin(self, request: NewSession, say: Say) -> Bridge:
        """A new session; nothing of it is left when this raises."""
        return live_bridge(await factory.begin(request, say))

    async def resume(self, folder: Path, say: Say) -> Bridge:
        """A session continues where it stands, on the device that it was on before."""
        state = await asyncio.to_thread(store.state_of, folder)
        assert state.opened is not None, "a journal begins with it"
        label = devices.checked_device(state.device.label if state.device else state.opened.device)
        return live_bridge(await factory.resume(folder, say, label))

    def replay(self, folder: Path) -> Bridge:
        """A recording, paused at its end: the result is seen first, and play starts it over."""
        recorded = ReplaySource(journal.read(folder).entries)
        recorded.seek(recorded.length)
        return Bridge(recorded, folder, transport=recorded)

    def follow(self, folder: Path) -> Bridge:
        """A session that another process runs, to be watched."""
        return Bridge(FollowSource(folder), folder)

    def fork(self, folder: Path, position: int) -> Path:
        """The first ``position`` entries of a session as a session in a new folder of its own."""
        return fork.fork(folder, position)

    def devices(self) -> tuple[tuple[str, str], ...]:
        """(label, name) of what this machine can measure on, the best first."""
        return devices.devices()

    def problems(self) -> tuple[Problem, ...]:
        """The problems that ship, by name."""
        return factory.shipped_problems()

    def proposers(self) -> tuple[str, ...]:
        """Proposers that need no key, the usual one first."""
        return factory.SOURCES


def live_bridge(live: LiveSession) -> Bridge:
    """A bridge to a session that runs in this process."""
    state = live.state
    label = state.device.label if state.device is not None else state.opened.device if state.opened is not None else "cpu"
    return Bridge(live, live.folder, live=live, monitor=open_monitor(label))
