"""The workers, or the builders, of a session: started again when they are lost, and granted to the work that asks for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.fleet.client import WorkerGone
from engine.fleet.member import FleetMember
from engine.fleet.queue import WorkerQueue

TRIES = 2
"""How many members one work item may lose before it is given up."""
_MOST_LOSSES = 3
"""How often in a row one may be lost without a result in between before it is not started again."""

Say = Callable[[str], None]
M = TypeVar("M", bound=FleetMember)
Tell = Callable[[e.Event], None]


class MemberPool(Generic[M]):
    """Members by name, and who gets which."""

    def __init__(self, members: Iterable[M], join: Callable[[M], Awaitable[e.Event]], tell: Tell, nobody: str) -> None:
        """``join`` starts a member and opens what it works on; ``nobody`` says that none is left."""
        self.members = {member.name: member for member in members}
        self.queue = WorkerQueue(self.members)
        self._join = join
        self._tell = tell
        self._nobody = nobody
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def begin(self, name: str) -> None:
        """Start a member; one that does not suit the session is left out, and the journal says why."""
        member = self.members[name]
        try:
            event = await self._join(member)
        except EspalierError as error:
            await member.end()
            if not self._closing:
                self.left(name, str(error), again=isinstance(error, WorkerGone) and not error.final)
            return
        self.joined(name, event)

    def joined(self, name: str, event: e.Event) -> None:
        """A member has started: it may get work."""
        self._tell(event)
        self.queue.set_ready(name, ready=True)
        self._spawn(self._watch(name))

    def _spawn(self, effect: Any) -> None:
        task = asyncio.create_task(effect)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, name: str) -> None:
        """Wait until a member is lost."""
        member = self.members[name]
        gone = await member.lost()
        if self._closing:
            return
        self.queue.set_ready(name, ready=False)
        await member.end()
        self.left(name, str(gone), again=not gone.final)

    def left(self, name: str, reason: str, *, again: bool) -> None:
        """A member is gone: start it again unless that is useless."""
        member = self.members[name]
        member.losses += 1
        again = again and member.losses <= _MOST_LOSSES
        self._tell(e.WorkerLost(name, reason if again else f"{reason}; it is not started again"))
        if again:
            self._spawn(self.begin(name))
            return
        self.queue.drop(name)
        if not self.queue.slots:
            self.queue.fail(f"{self._nobody}: {name} {reason}")

    @asynccontextmanager
    async def member(
        self, *, alone: bool = True, prefer: str = "", avoid: frozenset[str] = frozenset()
    ) -> AsyncIterator[M]:  # fmt: skip
        """A member for one work item. Raises EspalierError once there is none and none will come."""
        slot = await self.queue.take(alone=alone, prefer=prefer, avoid=avoid)
        try:
            yield self.members[slot.name]
        finally:
            self.queue.give_back(slot, alone=alone)

    async def close(self) -> None:
        """End all members; idempotent."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(member.end() for member in self.members.values()))


def prefixed(say: Say, name: str) -> Say:
    """Progress that names who makes it."""
    return lambda text: say(f"{name}: {text}")


def given_up(key: w.WorkKey, lost: Sequence[str], gone: WorkerGone) -> w.Abandoned:
    """The result of work that lost ``TRIES`` members."""
    reason = f"{len(lost)} workers were lost during this {key.kind} step: {', '.join(lost)}; the last: {gone}"
    return w.Abandoned(reason, lost[-1])
