"""Creates, resumes and steers sessions: connects a session's writer with its bench and its proposers.

Rejects bad input before it creates a session's folder. Decides nothing about the search. Never imports torch.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from engine.codegen.scaffold import scaffold
from engine.domain import queries
from engine.domain.commands import Command
from engine.domain.errors import JournalError, ProblemError
from engine.domain.events import SessionOpened
from engine.domain.model import ENGINEER, Author, Blob, Device, Draft, Problem, Signature
from engine.domain.preparation import Preparation
from engine.domain.settings import Settings
from engine.domain.state import SessionState
from engine.ideas.factory import open_ideas
from engine.ideas.mix import PASTE, PLAYBOOK
from engine.ideas.models import registry
from engine.ideas.models.model import Model
from engine.ideas.playbook import Playbook, available
from engine.ideas.proposer import Proposer
from engine.ideas.recall import Recall, recorded_replies
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.journal.lock import WriterLock
from engine.problem import catalog
from engine.session.cached_verdicts import CachedVerdictBench, comparable
from engine.session.live import LiveSession, Ports
from engine.session.perform import Ceilings
from engine.session.ports import Bench, Say
from engine.session.requirements import check_requirements, sandbox_warning
from engine.session.seeds import Seed, check_dialect, dialect_for, seed_command
from engine.session.writer import SessionWriter
from engine.toolchain.kernel_file import classify
from engine.trial.bench import Assignment, TrialBench

PROPOSERS = (PLAYBOOK, PASTE)
"""Proposers that need no key."""

_NO_MODEL_LIMIT = Ceilings(model=None)
"""No time limit on proposers and writers: a person may have to answer, and models have their own limits."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """The settings of a new session."""

    problem: Problem
    device: str
    """``cpu`` or ``cuda:N``."""
    settings: Settings
    """``workload`` is any name that ``catalog.workload_for`` accepts; the session records the workload's own name."""
    mode: str = "autopilot"
    folder: Path | None = None
    """``None``: a new folder in the default place."""
    seeds: tuple[Seed, ...] = ()
    """Kernels to seed before the first round."""
    fresh: bool = False
    """Measure every baseline again instead of reusing times of earlier sessions."""


def shipped_problems() -> tuple[Problem, ...]:
    """The shipped problems, sorted by name."""
    return catalog.shipped()


def find_problem(text: str) -> Problem:
    """The problem with this name, or in this folder or file. Raises ProblemError."""
    return catalog.find(text)


@dataclass(slots=True)
class _LazyBlobs:
    """Blobs of a session whose folder does not exist yet."""

    blobs: Blobs | None = None

    def put(self, payload: bytes) -> Blob:
        if self.blobs is None:
            raise RuntimeError("the session has no folder yet")
        return self.blobs.put(payload)


async def begin(request: NewSession, say: Say) -> LiveSession:
    """Create a session with its seeds, ready to run.

    Raises EspalierError for an invalid problem, device, setting, seed, compiler or folder; then nothing is left on disk.
    """
    _check_no_session(request.folder)
    proposers = _Proposers(request.settings, catalog.folder(request.problem))
    proposers.check()
    workload = catalog.workload_for(request.problem, request.settings.workload)
    opened = SessionOpened(
        request.problem, request.device, replace(request.settings, workload=workload.name), request.mode, versions()
    )
    for seed in request.seeds:
        check_dialect(seed.kernel, request.device)
    await check_requirements(request.device)
    lazy_blobs = _LazyBlobs()
    bench = TrialBench(replace(assignment(opened), fresh=request.fresh), lazy_blobs.put)
    try:
        if warning := sandbox_warning():
            say(warning)
        say("loading torch and the problem")
        device, signature = await bench.describe()
        root = await _naive_port(bench, opened, device, signature, say)
        if isinstance(root, str) and not request.seeds:
            raise ProblemError(f"{request.problem.name}: no naive port: {root}; provide a first kernel with --seed-kernel FILE")
        ideas = proposers.open(root if isinstance(root, Draft) else None)
        ports = Ports(_with_cached_verdicts(bench, opened, device), ideas, ceilings=_NO_MODEL_LIMIT)
        writer = _created(request, opened)
        lazy_blobs.blobs = writer.blobs
        return LiveSession(writer, ports)
    except BaseException:
        await bench.close()
        raise


def _created(request: NewSession, opened: SessionOpened) -> SessionWriter:
    """Create the session on disk, with its seeds. On failure, removes only what it created."""
    folder = request.folder or store.new_folder(request.problem.name)
    made = [place for place in (folder, *folder.parents) if not os.path.exists(place)] if request.folder else [folder]
    before = set(folder.iterdir()) if os.path.isdir(folder) else set()
    writer = None
    try:
        writer = SessionWriter.create(folder, opened)
        for seed in request.seeds:
            writer.submit(seed_command(writer.store_blob, seed), ENGINEER)
        return writer
    except BaseException:
        with suppress(OSError):
            if writer is not None:  # otherwise new files belong to another process
                writer.close()
                for path in set(folder.iterdir()) - before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            for place in made:
                place.rmdir()
        raise


async def resume(folder: Path, say: Say, device: str = "") -> LiveSession:
    """Open the session in ``folder``, ready to run here. On another device than before, it is prepared again first.

    ``device`` overrides the device of the journal. Raises EspalierError: no session, locked, read-only, too new, or its device
    or compiler is missing here.
    """
    state = store.state_of(folder)
    WriterLock(folder).release()
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    label = device or queries.device_label(state)
    proposers = _Proposers(opened.settings, catalog.folder(opened.problem))
    await check_requirements(label)
    bench = TrialBench(assignment(opened, label, state.preparation), Blobs(folder).put)
    try:
        if warning := sandbox_warning():
            say(warning)
        say("loading torch and the problem")
        here, signature = await bench.describe()
        root = None if state.kernels else await _naive_port(bench, opened, here, signature, say)
        ideas = proposers.open(root if isinstance(root, Draft) else None)
        moved = state.device is not None and not queries.same_device(state.device, here)
        ports = Ports(_with_cached_verdicts(bench, opened, here), ideas, ceilings=_NO_MODEL_LIMIT)
        return LiveSession.resume(folder, ports, prepare_again=moved)
    except BaseException:
        await bench.close()
        raise


def steer(folder: Path, commands: Callable[[SessionWriter], Sequence[Command]]) -> tuple[SessionState, SessionState]:
    """Submit commands to a session without running it; returns the states before and after.

    ``commands`` receives the writer, to read the state and to store a kernel's code. Raises JournalError and its subclasses,
    and CommandRejected; the commands before the rejected one are recorded.
    """
    with SessionWriter.open(folder) as writer:
        before = writer.state
        for command in commands(writer):
            writer.submit(command, ENGINEER)
        return before, writer.state


def versions() -> dict[str, str]:
    """The versions that a session records."""
    found = {"python": platform.python_version()}
    for package in ("espalier", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def assignment(opened: SessionOpened, label: str = "", known: Preparation | None = None) -> Assignment:
    """The assignment of the session's bench, on the device of the journal or on ``label``. The A/A interval and the measured
    peaks of ``known``, an earlier preparation on that device, are reused."""
    settings = opened.settings
    workload = catalog.workload_for(opened.problem, settings.workload)
    others = tuple(name for name in settings.others if name != settings.baseline)
    return Assignment(
        opened.problem, workload, label or opened.device, settings.tolerance, settings.baseline, others, settings.cold,
        (known.same.value, known.same.low, known.same.high) if known else None, peaks=known.peaks if known else None,
    )  # fmt: skip


async def _naive_port(
    bench: TrialBench, opened: SessionOpened, device: Device, signature: Signature, say: Say
) -> Draft | str | None:
    """A generated naive port, or the reason why there is none; ``None`` if the playbook has one."""
    dialect = dialect_for(device, signature)
    folder = catalog.folder(opened.problem)
    if folder is not None and available(folder, dialect).root:
        return None
    say("generating the naive port")
    try:
        graph = await bench.graph()
        workload = catalog.workload_for(opened.problem, opened.settings.workload)
        text = scaffold(opened.problem, workload, signature, graph, dialect)
        name = f"naive{dialect.suffix}"
        return Draft(text, dialect, classify(text, name)[1], name, {})
    except ProblemError as error:
        return str(error)


class _Proposers:
    """The session's proposers, created before its naive port is known."""

    def __init__(self, settings: Settings, problem: Path | None) -> None:
        """Raises ProposerError for an unknown proposer; JournalError if the session to recall replies from is damaged."""
        self._root: Draft | None = None
        playbook = Playbook(problem, lambda dialect: self._root if self._root and self._root.dialect is dialect else None)
        self._mix = open_ideas(
            settings, playbook=playbook, open_model=_model_opener(settings), recall=_recorded_replies(settings)
        )

    def check(self) -> None:
        """Raises ProposerError if a key is missing or a base URL is invalid. Not called for resumed sessions, which need a key
        only when they ask a model."""
        self._mix.open_all()

    def open(self, root: Draft | None) -> Proposer:
        """The session's proposer; ``root`` is the generated naive port if the playbook has none."""
        self._root = root
        return self._mix


def _model_opener(settings: Settings) -> Callable[[str], Model]:
    def opened(name: str) -> Model:
        return registry.open_model(name, base_url=(settings.base_url or None) if Author(name).provider == "openai" else None)

    return opened


def _with_cached_verdicts(bench: TrialBench, opened: SessionOpened, here: Device) -> Bench:
    """The bench; reuses verdicts of the recalled session if they are valid here."""
    folder = Path(opened.settings.recall)
    if not opened.settings.recall or not store.is_session(folder):
        return bench
    recorded = store.state_of(folder)
    return CachedVerdictBench(bench, recorded, folder.name) if comparable(recorded, opened, here) else bench


def _recorded_replies(settings: Settings) -> Recall | None:
    if not settings.recall:
        return None
    recorded = Path(settings.recall)
    if not store.is_session(recorded):  # moved, or on another machine: no recalled replies, and new spending needs confirmation
        return Recall()
    return recorded_replies(store.state_of(recorded), Blobs(recorded).text)


def _check_no_session(folder: Path | None) -> None:
    if folder is not None and store.is_session(folder):
        raise JournalError(f"{folder} already holds a session: resume it with `espalier open {folder}`, or name another folder")
