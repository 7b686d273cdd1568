"""What a coding agent may reach: problems and sessions by name, a budget of verdicts, and no path outside one folder.

The rules of a session decide what an agent may ask of it (``engine.domain.rules.permissions``). This module bounds what it may
cost. Nothing here knows MCP.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from engine.api.session import Session
from engine.domain import events as e
from engine.domain.errors import CommandRejected, EspalierError, ProblemError
from engine.domain.model import Author, Problem
from engine.journal import store
from engine.problem import catalog
from engine.session.ports import Say
from engine.toolchain.kernel_file import KernelCode, classify

T = TypeVar("T")

LONGEST_CODE = 256 << 10
LONGEST_TEXT = 8 << 10
_CALLS, _PER_SECONDS = 240, 60.0
_MOST_SESSIONS = 4
_CHARGED = e.KernelDrafted | e.RaceAsked | e.KernelReopened | e.KernelProfiled


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """What the engineer allows."""

    root: Path
    """Problems outside the shipped ones must lie in this folder."""
    verdicts: int = 40
    """Kernels, races and counters that may be measured for the agent, over all sessions that it uses."""
    mode: str = "ask"
    """Approval mode of sessions that the agent opens."""
    only: str | None = None
    """The only session that the agent may use, by name; ``None`` for every session of the user."""


@dataclass(slots=True)
class AgentAccess:
    """One agent's access to this machine. ``close`` releases its sessions."""

    author: Author
    limits: AgentLimits
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a kernel is measured, by one agent of the server at a time: two would disturb each other."""
    clock: Callable[[], float] = time.monotonic
    evaluations: int = 0
    """Verdicts charged that no journal holds, or not yet."""
    sessions: dict[str, Session] = field(default_factory=dict)
    _calls: deque[float] = field(default_factory=deque)
    _charging: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the look at the budget until the verdict counts: parallel calls would all find it left."""

    def admit(self) -> None:
        """Count one call. Raises CommandRejected for a flood."""
        now = self.clock()
        while self._calls and now - self._calls[0] > _PER_SECONDS:
            self._calls.popleft()
        if len(self._calls) >= _CALLS:
            raise CommandRejected(f"more than {_CALLS} calls in {_PER_SECONDS:g} s: wait, and use wait_for instead of polling")
        self._calls.append(now)

    @property
    def verdicts_used(self) -> int:
        """Evaluations of this server, and what the journals of the agent's sessions charge to it."""
        charged = (entry for session in self.sessions.values() for entry in session.events() if entry.by == self.author)
        return self.evaluations + sum(isinstance(entry.event, _CHARGED) for entry in charged)

    async def hold(self) -> None:
        """Charge one verdict. Raises CommandRejected if none is left."""
        async with self._charging:
            self._check_budget()
            self.evaluations += 1

    async def charge(self, record: Callable[[], T], *, held: bool = False) -> T:
        """``record``, in a thread; the journal charges what it records. ``held``: ``hold`` has charged it so far.

        Goes on when it is cancelled, as the thread does. Raises CommandRejected if no verdict is left.
        """
        return await asyncio.shield(asyncio.ensure_future(self._charge(record, held)))

    async def _charge(self, record: Callable[[], T], held: bool) -> T:
        async with self._charging:
            try:
                if not held:
                    self._check_budget()
                return await asyncio.to_thread(record)
            finally:
                self.evaluations -= held

    def _check_budget(self) -> None:
        if (used := self.verdicts_used) >= self.limits.verdicts:
            advice = "the engineer sets the budget with `espalier mcp --verdicts N`"
            raise CommandRejected(f"the budget of {self.limits.verdicts} verdicts is used up ({used}): {advice}")

    def problem(self, text: str) -> Problem:
        """A shipped problem by name, or one inside the root folder. Raises ProblemError; no other path is even looked at."""
        if text in catalog.shipped_names():
            return catalog.find(text)
        try:
            path = (self.limits.root / Path(text)).resolve()
            inside = path.is_relative_to(self.limits.root.resolve()) and path.exists()
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not text or not inside:
            known = ", ".join(catalog.shipped_names())
            raise ProblemError(f"unknown problem {text[:80]!r}: name one of {known}, or a file inside the folder of `--root`")
        return catalog.find(str(path))

    def session(self, name: str) -> Session:
        """A session by its name, never by a path. Raises CommandRejected for an unknown one."""
        if self.limits.only is not None and name != Path(self.limits.only).name:
            raise CommandRejected(f"this server serves the session {Path(self.limits.only).name} only")
        if name not in self.sessions:
            known = store.folders() if self.limits.only is None else (Path(self.limits.only),)
            found = next((folder for folder in known if folder.name == name), None)
            if found is None:
                raise CommandRejected(f"unknown session {name[:80]!r}: call list_sessions for the names")
            self.sessions[name] = Session.open(found, by=self.author)
        return self.sessions[name]

    def open(
        self, problem: Problem, device: str | None, workload: str | None, suite: str | None, say: Say = lambda text: None
    ) -> Session:
        """A new session whose ideas come from agents and people; it runs here until ``close``.

        Raises CommandRejected if the agent holds too many, EspalierError if it cannot be created.
        """
        if self.limits.only is not None:
            raise CommandRejected(f"this server serves the session {Path(self.limits.only).name} only")
        if sum(session.held_here for session in self.sessions.values()) >= _MOST_SESSIONS:
            raise CommandRejected(f"{_MOST_SESSIONS} sessions of this agent are running: use one of them")
        session = Session.new(
            problem, device=device, workload=workload, suite=suite, proposer="agent", mode=self.limits.mode, by=self.author,
            say=say,
        )  # fmt: skip
        self.sessions[session.folder.name] = session
        session.start()
        return session

    def code(self, text: str, name: str) -> KernelCode:
        """A kernel's text. Raises KernelCodeError, CommandRejected for a name with a path or a text that is too long."""
        if "/" in name or "\\" in name or not name or len(name) > 100 or not name.isprintable():
            raise CommandRejected("name the kernel like a file without a folder: kernel.cu, kernel.cpp or kernel.py")
        if len(text) > LONGEST_CODE:
            raise CommandRejected(f"the code has {len(text)} characters, more than {LONGEST_CODE}")
        return KernelCode(text, *classify(text, name), name)

    def close(self) -> list[str]:
        """Release every session that runs here; what failed to close."""
        failed = []
        for name, session in self.sessions.items():
            try:
                session.close()
            except EspalierError as error:
                failed.append(f"{name}: {error}")
        self.sessions.clear()
        return failed


def bounded(text: str, what: str) -> str:
    """A text of an agent. Raises CommandRejected if it is too long to be read by a person."""
    if len(text) > LONGEST_TEXT:
        raise CommandRejected(f"{what} has {len(text)} characters, more than {LONGEST_TEXT}")
    return text
