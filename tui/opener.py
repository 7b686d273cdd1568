"""Opens sessions, and lists the choices for a new one; tests replace it.

Importing this module loads no engine: home is drawn before it is there, and each method imports what it needs. Whatever is slow
for its imports or its reading is called on a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tui.garbage import without_collections

if TYPE_CHECKING:
    from engine.domain.model import Problem
    from engine.domain.trust import TrustQuestion
    from engine.report.facts.side_by_side import SideBySide
    from engine.session.factory import NewSession, SavedSession
    from engine.session.ports import Say
    from engine.session.replay import Recording
    from tui.bridge import Bridge
    from tui.viewmodel.preview import SessionFacts


class SessionOpener:
    """Creates and opens sessions, and lists the choices for a new one. Methods raise EspalierError with one line."""

    def __init__(self) -> None:
        self._latest: tuple[object, Recording] | None = None
        """The recording that was read last, and which version of which journal it is: a preview's is replayed next."""
        self._reading = threading.Lock()

    def _recording(self, folder: Path) -> Recording:
        """A session's journal, read and folded, unless it is the one that was read last. Raises JournalError."""
        from engine.journal import journal
        from engine.session.replay import Recording

        with self._reading:  # who opens what is being previewed waits for it
            version = (folder, journal.version(folder))
            if self._latest is not None and self._latest[0] == version:
                return self._latest[1]
            with without_collections():
                recording = Recording(journal.read(folder).entries)
                recording.state_at(len(recording.entries))
            self._latest = (version, recording)
            return recording

    async def begin(self, request: NewSession, say: Say) -> Bridge:
        """Create a session. Nothing is left on disk if this raises."""
        from engine.session import factory
        from tui.bridge import live_bridge

        return live_bridge(await factory.begin(request, say))

    async def resume(self, saved: SavedSession, say: Say) -> Bridge:
        """Resume a session."""
        from engine.journal import store
        from engine.session import factory, requirements
        from tui.bridge import live_bridge

        with without_collections():
            state = await asyncio.to_thread(store.state_of, saved.folder)
        label = requirements.session_device(state, saved.device)
        return live_bridge(await factory.resume(replace(saved, device=label), say))

    def replay(self, folder: Path) -> Bridge:
        """Replay a session. It is paused at its end: the result is shown first, and play starts over."""
        from engine.session.replay import ReplaySource
        from tui.bridge import Bridge

        recorded = ReplaySource(self._recording(folder))
        recorded.seek(recorded.length)
        return Bridge(recorded, folder, transport=recorded)

    def follow(self, folder: Path) -> Bridge:
        """Follow a session that another process runs."""
        from engine.session.follow import FollowSource
        from tui.bridge import Bridge

        return Bridge(FollowSource(folder), folder)

    def join(self, folder: Path) -> Bridge:
        """Steer a session that another process runs."""
        from engine.session.follow import JoinedSource
        from tui.bridge import Bridge

        source = JoinedSource(folder)
        return Bridge(source, folder, joined=source)

    def beside(self, folder: Path, others: Sequence[Path]) -> SideBySide:
        """A session side by side with those of ``others`` that can be compared with it. Raises ProblemError for none."""
        from engine.journal import journal, store
        from engine.report.facts.side_by_side import beside_comparable

        first, *names = store.distinct_names([folder, *others])
        named = ((name, journal.read(other).entries) for name, other in zip(names, others, strict=True))
        return beside_comparable((first, journal.read(folder).entries), named)

    def preview(self, folder: Path) -> SessionFacts:
        """What the journal of a session tells; nothing of it is executed."""
        from tui.viewmodel.preview import session_facts

        recording = self._recording(folder)
        return session_facts(folder.name, recording.entries, recording.state_at(len(recording.entries)))

    def trust(self, asked: TrustQuestion) -> None:
        """Record that the user allowed what the question shows."""
        from engine.session import trust

        trust.confirm(asked)

    def fork(self, folder: Path, position: int) -> tuple[Path, str]:
        """Copy the first ``position`` entries of a session to a new session folder; words on payloads that it lacks."""
        from engine.report.facts.forks import lost_words
        from engine.session import fork

        forked = fork.fork(folder, position)
        return forked.folder, lost_words(forked.missing, folder)

    def devices(self) -> tuple[tuple[str, str], ...]:
        """(label, name) of this machine's devices, the fastest first. Slow the first time where there is a GPU's driver."""
        from engine.session import devices

        return devices.devices()

    def problems(self) -> tuple[Problem, ...]:
        """The shipped problems, by name."""
        from engine.problem import catalog

        return catalog.shipped()

    def proposers(self) -> tuple[str, ...]:
        """Proposers that need no API key, the default first."""
        from engine.session import factory

        return factory.KEYLESS_PROPOSERS

    async def missing_tools(self) -> tuple[str, ...]:
        """One line for each missing tool: what it changes, and the package that provides it."""
        from engine.session import requirements

        return await requirements.missing_tools()
