"""The one door between the face and the engine: drains a source, submits commands, keeps a search running.

Knows the session room; nothing of widgets. A screen asks its ``Bridge`` what can be done (``can``, ``transport``), never which
kind of source lies behind it. ``Doors`` opens sources, so that a test can open others. No torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from engine.build import scaffold
from engine.build.source import KernelSource, classify
from engine.cli.kernels import read_seed
from engine.cli.machine import checked_device, gpu_names
from engine.domain.commands import AnswerCall, Command
from engine.domain.errors import CommandRejected, JournalCorrupt
from engine.domain.events import Entry, SessionOpened
from engine.domain.model import Blob, Dialect
from engine.domain.state import Call, Kernel, SessionState, advance
from engine.journal import bundle, journal, store
from engine.journal.blobs import Blobs
from engine.journal.lock import unwritable
from engine.session import assembly
from engine.session.assembly import NewSession, Seed
from engine.session.follow import FollowSource
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped
from engine.session.replay import Landmark, ReplaySource
from engine.session.source import Batch, Capability, SessionSource
from tui.mixes import Mixes
from tui.telemetry import Feed, feed_for

Say = Callable[[str], None]

_MANY_ENTRIES = 2000
_ENTRIES_KEPT = 5000
"""Entries kept at hand to tell the story from; the journal has the rest."""
_SUFFIX = {Dialect.CUDA: ".cu", Dialect.CPP: ".cpp", Dialect.PYTHON: ".py"}

__all__ = ["Bridge", "Capability", "Doors", "EngineDoors", "Landmark", "NewSession", "Say", "Seed"]


class Bridge:
    """One source with all that a face needs of it.

    ``pump`` and ``run`` are for the app to own as workers: a worker dies with the node that started it, and a search must
    outlive every screen.
    """

    def __init__(
        self,
        source: SessionSource,
        folder: Path,
        *,
        live: LiveSession | None = None,
        transport: ReplaySource | None = None,
        feed: Feed | None = None,
    ) -> None:
        """``live`` and ``transport`` are ``source`` itself again, where it is one that runs or can be sought.

        ``feed`` looks at the device that it runs on.
        """
        self.source = source
        self.folder = folder
        self.name = folder.name
        self.transport = transport
        """Play, pause and seek, where the source has them."""
        self.state: SessionState = source.state
        self.entries: list[Entry] = []
        """The last of what is recorded up to ``state``; another list after a seek."""
        self.before = SessionState()
        """The state before the first of ``entries``."""
        self.words: dict[str, str] = {}
        """Work under way → the latest word on it."""
        self.stopped: Mapping[str, str] = {}
        """Work that the engine could not do → why; then it waits for ``retry``."""
        self.closed = False
        self.trouble = ""
        """Why the source can no longer be read or recorded."""
        self.mixes = Mixes()
        """Instruction mixes of built kernels, as far as they are known."""
        self._feed = feed
        self._live = live
        self._blobs = Blobs(folder)
        self._texts: dict[Blob, str] = {}
        self._again = asyncio.Event()

    def can(self, capability: Capability) -> bool:
        return capability in self.source.capabilities

    @property
    def state_now(self) -> SessionState:
        """The source's own state, which may be ahead of ``state`` by what was submitted a moment ago."""
        return self.source.state

    @property
    def in_hand(self) -> frozenset[str]:
        """Keys of the work under way in this process."""
        return self._live.in_hand if self._live is not None else frozenset()

    @property
    def load(self) -> str:
        """What the device is doing right now, in words; empty where nobody can say."""
        latest = self._feed.latest if self._feed is not None else None
        return latest.words if latest is not None else ""

    @property
    def deadline(self) -> float | None:
        """When the policy decides in the engineer's place (seconds since the epoch)."""
        return self._live.deadline if self._live is not None and not self.closed else None

    def read_blob(self, name: Blob) -> str:
        """A payload as text. Raises JournalCorrupt when it is missing or damaged."""
        if name not in self._texts:
            if len(self._texts) > 256:
                self._texts.clear()
            self._texts[name] = self._blobs.text(name)
        return self._texts[name]

    def source_of(self, kernel: Kernel) -> str:
        """The kernel's source text; in its place, why it cannot be read."""
        try:
            return self.read_blob(kernel.source)
        except JournalCorrupt as error:
            return f"// {error}\n"

    async def submit(self, command: Command) -> None:
        """Raises CommandRejected with the reason, JournalError when it could not be recorded."""
        self._check_folder()
        await self.source.submit(command)
        self.state = self.source.state  # shown at once; the entries follow with the next batch
        self._again.set()

    async def plant(self, kernel: KernelSource, tunables: Mapping[str, int], *, parent: str | None = None,
                    idea: str | None = None, title: str = "") -> None:  # fmt: skip
        """Bring a kernel in by hand.

        Raises:
            SourceError: a tunable that cannot be read.
            ProblemError: a dialect that this session's device does not run.
            CommandRejected: the rules do not allow it, or this source takes no commands.
        """
        opened = self.state.opened
        if self._live is None or opened is None:
            raise CommandRejected("nothing can be brought into a session that is only being watched")
        assembly.check_dialect(kernel, self.state.device.label if self.state.device else opened.device)
        seed = assembly.seed_of(kernel, tunables)
        await self.submit(assembly.planting(self._live, seed, parent, idea, title))

    async def plant_text(self, text: str, name: str, *, parent: str | None = None, idea: str | None = None,
                         title: str = "") -> None:  # fmt: skip
        """Bring in a source that was written or pasted. Raises like ``plant``, and SourceError when it fits no contract."""
        dialect, contract = classify(text, name)
        await self.plant(KernelSource(text, dialect, contract, name), {}, parent=parent, idea=idea, title=title)

    async def plant_named(self, wanted: str, *, parent: str | None = None, idea: str | None = None, title: str = "") -> None:
        """Bring in a file, or a kernel of any session as ``SESSION:kN``. Raises like ``plant``, and what reading it raises."""
        seed = read_seed(wanted, {})
        await self.plant(seed.kernel, seed.tunables, parent=parent, idea=idea, title=title)

    async def answer(self, call: Call, reply: str) -> None:
        """Bring the reply to a prompt that was given out by hand. Raises CommandRejected, JournalError."""
        if self._live is None:
            raise CommandRejected("prompts are answered where the session runs")
        await self.submit(AnswerCall(call.id, self._live.store_blob(reply.encode("utf-8", "replace"))))

    def blob_file(self, name: Blob) -> Path:
        """Where a payload lies, for programs that would rather read a file."""
        return self._blobs.path(name)

    def history(self) -> tuple[Entry, ...]:
        """Everything that is recorded, read from the journal. Raises JournalError."""
        return self.transport.entries if self.transport is not None else journal.read(self.folder).entries

    def blank(self) -> tuple[str, str]:
        """(file name, text) of an empty kernel for this session's device, every operand explained."""
        found, device = self.state.preparation, self.state.device
        if found is None or device is None:
            return "kernel.cpp", ""
        dialect = assembly.dialect_for(device, found.signature)
        return f"kernel{_SUFFIX[dialect]}", scaffold.empty(found.signature, dialect)

    async def pump(self) -> None:
        """Take in what the source records until it is closed; a screen looks at ``state`` when it pleases."""
        listening = asyncio.create_task(self._listen())
        try:
            async for batch in self.source.batches():
                self._absorb(batch)
                if len(batch.entries) > _MANY_ENTRIES:
                    gc.freeze()  # what is read at once is kept: looking it through for garbage would stop the screen
        finally:
            listening.cancel()

    async def run(self) -> None:
        """Search for as long as the session is open here; after it ended or stopped, go on when something is asked.

        Raises JournalError when it can no longer be recorded.
        """
        live = self._live
        while live is not None and not self.closed:
            self._again.clear()
            outcome = await live.run()
            self.stopped = outcome.reasons if isinstance(outcome, EngineStopped) else {}
            await self._again.wait()

    async def retry(self) -> None:
        """Owe again what the engine failed at. Raises CommandRejected when nothing runs here, JournalError like ``submit``."""
        if self._live is None:
            raise CommandRejected("nothing is run here: there is nothing to try again")
        self._check_folder()
        self.stopped = {}
        await self._live.retry()
        self._again.set()

    async def close(self) -> None:
        """Leave the session; what was under way is owed again when it is opened next."""
        if not self.closed:
            self.closed = True
            self.mixes.close()
            if self._feed is not None:
                self._feed.close()
            await self.source.close()

    def _check_folder(self) -> None:
        """A journal that was deleted takes what is written to it and keeps none of it. Raises JournalUnwritable."""
        if self._live is not None:
            try:
                (self.folder / journal.NAME).stat()
            except OSError as error:
                raise unwritable(self.folder, error) from error

    def _absorb(self, batch: Batch) -> None:
        if batch.entries:
            self.entries.extend(batch.entries)
            if len(self.entries) > 2 * _ENTRIES_KEPT and self.transport is None:
                gone = len(self.entries) - _ENTRIES_KEPT
                self.before = advance(self.before, self.entries[:gone])
                self.entries = self.entries[gone:]
        else:
            self.entries = list(self.transport.entries[: self.transport.position]) if self.transport is not None else []
        self.state = batch.state
        self.stopped = {work: reason for work, reason in self.stopped.items() if work in batch.state.broken}
        for work in [work for work in self.words if work not in batch.state.started]:
            del self.words[work]

    async def _listen(self) -> None:
        async for word in self.source.progress():
            self.words[word.work] = word.text


class Doors(Protocol):
    """How sessions are opened. Every method raises EspalierError with one line for a person."""

    async def begin(self, wanted: NewSession, say: Say) -> Bridge: ...

    async def resume(self, folder: Path, say: Say) -> Bridge: ...

    def replay(self, folder: Path) -> Bridge: ...

    def follow(self, folder: Path) -> Bridge: ...

    def fork(self, folder: Path, position: int) -> Path: ...

    def devices(self) -> tuple[tuple[str, str], ...]:
        """(label, name) of what this machine can measure on, the best first."""
        ...

    def sources(self) -> tuple[str, ...]:
        """Sources of ideas that can be chosen, the one that needs no key first."""
        ...


class EngineDoors:
    """``Doors`` to the true engine."""

    async def begin(self, wanted: NewSession, say: Say) -> Bridge:
        """A new session; nothing of it is left when this raises."""
        return live_bridge(await assembly.begin(wanted, say))

    async def resume(self, folder: Path, say: Say) -> Bridge:
        """A session goes on where it stands, on the device that it was on before."""
        state = await asyncio.to_thread(store.state_of, folder)
        assert state.opened is not None, "a journal begins with it"
        label = checked_device(state.device.label if state.device else state.opened.device)
        return live_bridge(await assembly.resume(folder, say, label))

    def replay(self, folder: Path) -> Bridge:
        """A recording, paused at its end: what it came to is seen first, and play starts it over."""
        recorded = ReplaySource(journal.read(folder).entries)
        recorded.seek(recorded.length)
        return Bridge(recorded, folder, transport=recorded)

    def follow(self, folder: Path) -> Bridge:
        """Someone else's session, to be watched."""
        return Bridge(FollowSource(folder), folder)

    def fork(self, folder: Path, position: int) -> Path:
        """The first ``position`` entries of a session, with what they name, as a session of its own in a new folder."""
        entries = journal.read(folder).entries[: max(1, position)]
        theirs, opened = Blobs(folder), entries[0].event
        assert isinstance(opened, SessionOpened), "a journal begins with it"
        target = store.new_folder(opened.problem.name)
        with journal.Journal.create(target) as mine:
            for name in bundle.references(entries):
                with contextlib.suppress(JournalCorrupt):  # what is missing there was missing before
                    mine.blobs.put(theirs.get(name))
            origin = replace(opened, forked_from=f"{folder.name} after {entries[-1].seq + 1} events")
            for entry in entries:
                event = origin if entry.seq == 0 else entry.event
                mine.append((event,), entry.by, partial(float, entry.at))
        return target

    def devices(self) -> tuple[tuple[str, str], ...]:
        """GPUs that the driver offers, then the CPU."""
        return (*((f"cuda:{n}", name) for n, name in enumerate(gpu_names())), ("cpu", "this machine's processor"))

    def sources(self) -> tuple[str, ...]:
        """What the engine has."""
        return assembly.SOURCES


def live_bridge(live: LiveSession) -> Bridge:
    """A bridge to a session that runs in this process."""
    state = live.state
    label = state.device.label if state.device is not None else state.opened.device if state.opened is not None else "cpu"
    return Bridge(live, live.folder, live=live, feed=feed_for(label))
