"""Takes the commands that other processes left for the holder of a session, and records each with its answer.

A command and its answer are one batch of the journal. A request whose answer is already recorded is not repeated, so every
command is answered once, also when its holder was killed.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
from collections.abc import Callable

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import rules
from engine.domain.errors import CommandRejected, EspalierError, JournalError, JournalUnwritable, printable
from engine.domain.model import AGENT, ENGINEER, USER, Author
from engine.journal import inbox
from engine.journal.blobs import is_blob_name
from engine.journal.inbox import Request
from engine.session.writer import SessionWriter

_LOG = logging.getLogger(__name__)
_AGENT_NAME = re.compile(rf"{AGENT}:[A-Za-z0-9][A-Za-z0-9._-]{{0,39}}")
_AT_ONCE = 64


def agent(name: str) -> Author:
    """The author of an agent's ideas and kernels. Raises CommandRejected for an invalid name."""
    author = Author(f"{AGENT}:{name}")
    if _AGENT_NAME.fullmatch(author.name) is None:
        raise CommandRejected(f"invalid agent name {name[:60]!r}: use up to 40 letters, digits, dots, dashes and underscores")
    return author


class InboxReader:
    """Answers a session's inbox. Used by the process that holds the session."""

    def __init__(self, writer: SessionWriter, steered: Callable[[], None] = lambda: None) -> None:
        """``steered`` is called after each accepted command of the engineer."""
        self._writer = writer
        self._steered = steered
        answers = (entry.event for entry in writer.entries)
        self._fault = ""
        self._answered = {event.request for event in answers if isinstance(event, e.CommandAnswered)}

    def take(self, most: int = _AT_ONCE) -> int:
        """Answer the waiting commands in order, at most ``most``; returns how many.

        Raises JournalError if an answer cannot be recorded; that command and the later ones wait on.
        """
        taken = 0
        for name in inbox.waiting(self._writer.folder):
            if taken >= most:
                break
            try:
                request = inbox.claim(self._writer.folder, name)
            except JournalUnwritable as error:
                self._warn_once(str(error))
                break
            if request is None:
                continue
            if request.id not in self._answered:
                self._answer_or_unclaim(request)
                taken += 1
            inbox.finish(self._writer.folder, request)
        return taken

    def _warn_once(self, fault: str) -> None:
        """Log why commands cannot be taken, once for each reason. Their askers learn only that nobody took them."""
        if fault != self._fault:
            _LOG.warning("%s", fault)
            self._fault = fault

    def _answer_or_unclaim(self, request: Request) -> None:
        try:
            self._answer(request)
        except JournalError:
            inbox.unclaim(self._writer.folder, request.id)
            raise
        self._answered.add(request.id)

    def _answer(self, request: Request) -> None:
        by = Author("unknown")
        try:
            if request.uid >= 0:
                by = _author(request)
            events = self._decided(request, by)
        except JournalError:
            raise
        except EspalierError as error:
            self._refuse(request, by, str(error))
            return
        except Exception as error:  # the commands of others must go on
            _LOG.exception("%s of %s failed", request.name, by)
            self._refuse(request, by, f"internal error: {type(error).__name__}: {error}")
            return
        answer = e.CommandAnswered(request.id, request.name, accepted=True, events=len(events), process=request.process)
        self._writer.append((*events, answer), by)
        if by.is_engineer:
            self._steered()

    def _refuse(self, request: Request, by: Author, reason: str) -> None:
        shown = printable(" ".join(reason.split()))[:500]
        self._writer.append(
            (e.CommandAnswered(request.id, request.name, accepted=False, reason=shown, process=request.process),), by
        )

    def _decided(self, request: Request, by: Author) -> tuple[e.Event, ...]:
        if request.command is None:
            raise CommandRejected(f"the request {request.problem}")
        events = rules.decide(self._writer.state, request.command, by)
        for name in blobs_of(request.command):
            if not is_blob_name(name):
                raise CommandRejected(f"invalid blob name {name[:80]!r}")
            if name in request.payloads:
                self._writer.store_blob(request.payloads[name])
            elif not self._writer.blobs.path(name).is_file():
                raise CommandRejected(f"the request names a text that was not sent ({name[:12]})")
        return events


def blobs_of(command: c.Command) -> tuple[str, ...]:
    """The payloads that a command names."""
    match command:
        case c.SeedKernel():
            return (command.source,)
        case c.AnswerCall():
            return (command.reply,)
        case c.RecordProfile(profile=profile):
            return profile.blobs
        case _:
            return ()


def _author(request: Request) -> Author:
    """Who asked: as claimed by a file of this user, else the owner of the file. Raises CommandRejected for an invalid claim."""
    if _AGENT_NAME.fullmatch(request.by):
        return Author(request.by)
    if request.uid != os.geteuid():
        try:
            return Author(f"{USER}:{pwd.getpwuid(request.uid).pw_name}")
        except KeyError:
            return Author(f"{USER}:{request.uid}")
    if request.by != ENGINEER.name and request.problem == "":
        raise CommandRejected(f"unknown author {request.by[:80]!r}")
    return ENGINEER if request.by == ENGINEER.name else Author("unknown")
