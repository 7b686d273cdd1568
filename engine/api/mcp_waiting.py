"""Waits for an idea, a kernel or a session, and progress notifications for the client meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context

from engine.api import agent_views as views
from engine.api.session import Session
from engine.domain import queries
from engine.domain.errors import CommandRejected
from engine.domain.folds import advance
from engine.domain.state import IdeaStatus, SessionState
from engine.ideas.prompts import context
from engine.report.text import progress
from engine.report.text.lines import plain

_LOG = logging.getLogger(__name__)
LONGEST_WAIT = 600.0
_POLL = 0.1


async def wait_for_outcome(session: Session, subject: str, seconds: float, ctx: Context[Any, Any]) -> views.Data:
    """The subject once it is decided or measured, or after ``seconds``. Raises CommandRejected for an unknown one."""
    done = _outcome(session.state, subject)
    loop = asyncio.get_running_loop()
    deadline, shown = loop.time() + seconds, session.state
    while not done:
        state = session.state
        if state.seq != shown.seq:
            message = _latest_line(session, shown)
            shown = state
            await ctx.report_progress(float(state.seq), None, message)
        done = _outcome(state, subject)
        if not done and (loop.time() >= deadline or state.closed is not None or session.stopped):
            break
        await asyncio.sleep(0 if done else _POLL)
    state = session.state
    data: views.Data = {
        "done": bool(done),
        "state": views.state_words(state),
        "stopped": dict(session.stopped),
    }
    if subject in state.kernels:
        data |= views.kernel_data(session, state.kernels[subject])
    elif subject in state.ideas:
        data |= views.idea_data(state, state.ideas[subject])
    return data


def _outcome(state: SessionState, subject: str) -> bool:
    """Whether what is waited for has happened. Raises CommandRejected for an unknown subject."""
    if subject in state.kernels:
        return state.kernels[subject].stage.settled
    if subject in state.ideas:
        return state.ideas[subject].status is not IdeaStatus.PROPOSED
    if subject == "session":
        return bool(state.kernels) and not queries.unsettled(state)
    raise CommandRejected(f"unknown subject {subject[:80]!r}: name an idea (i3), a kernel (k5), or session")


def _latest_line(session: Session, shown: SessionState) -> str:
    """The last line of what happened since ``shown``, without hold-out shapes."""
    text = ""
    for entry in map(views.without_drawn_shape, session.events(from_seq=shown.seq + 1)):
        before = shown
        shown = advance(shown, (entry,))
        for spans in progress.lines(before, entry, shown):
            text = context.without_holdouts(plain(spans))
    return text or "working"


def reporter(ctx: Context[Any, Any]) -> Callable[[str], None]:
    """Sends progress lines as notifications, from any thread. A client that is gone misses them; its work goes on."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    sent = 0

    def send(text: str) -> None:
        nonlocal sent
        sent += 1
        task = asyncio.ensure_future(ctx.report_progress(float(sent), None, text))
        tasks.add(task)
        task.add_done_callback(finished)

    def finished(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.info("a progress notification was not delivered: %s", error)

    def say(text: str) -> None:
        loop.call_soon_threadsafe(send, context.without_holdouts(text))

    return say
