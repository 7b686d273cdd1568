"""Begins, resumes and steers sessions: puts a live session together from its problem, its bench and its proposers.

Checks everything that bad input can cause before a session's folder is made. Decides nothing about the search. No torch.
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
from engine.session.seeds import Seed, check_dialect, dialect_for, seed_command
from engine.session.writer import SessionWriter
from engine.toolchain import compilers
from engine.toolchain.kernel_file import classify
from engine.trial.bench import Assignment, TrialBench

SOURCES = (PLAYBOOK, PASTE)
"""Proposers that need no key."""

_NO_MODEL_LIMIT = Ceilings(model=None)
"""A person may be asked, without a time limit; models have limits of their own."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a new session is begun with."""

    problem: Problem
    device: str
    """``cpu`` or ``cuda:N``."""
    settings: Settings
    """``workload`` is a name that ``catalog.workload_for`` knows; the session keeps the name of the one found."""
    mode: str = "autopilot"
    folder: Path | None = None
    """``None``: a new folder in the usual place."""
    seeds: tuple[Seed, ...] = ()
    """Kernels brought in before the first round."""
    fresh: bool = False
    """Measure every baseline again instead of reusing times of earlier sessions."""


def shipped_problems() -> tuple[Problem, ...]:
    """The problems that ship, by name."""
    return catalog.shipped()


def find_problem(text: str) -> Problem:
    """The problem of this name, in this folder or file. Raises ProblemError."""
    return catalog.find(text)


@dataclass(slots=True)
class _LazyBlobs:
    """Blobs of a session whose folder is not known yet."""

    blobs: Blobs | None = None

    def put(self, payload: bytes) -> Blob:
        if self.blobs is None:
            raise RuntimeError("nothing is kept before the session has a folder")
        return self.blobs.put(payload)


async def begin(request: NewSession, say: Say) -> LiveSession:
    """A new session with its seeds, ready to run.

    Raises EspalierError for whatever is wrong with problem, device, settings, seeds, compiler or folder; then nothing is left
    on the disk that was not there before.
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
    await check_compiler(request.device)
    lazy_blobs = _LazyBlobs()
    bench = TrialBench(replace(assignment(opened), fresh=request.fresh), lazy_blobs.put)
    try:
        say("reading the problem")
        device, signature = await bench.describe()
        root = await _naive_port(bench, opened, device, signature, say)
        if isinstance(root, str) and not request.seeds:
            raise ProblemError(f"{request.problem.name}: no first kernel: {root}; bring one with --seed-kernel FILE")
        ideas = proposers.open(root if isinstance(root, Draft) else None)
        ports = Ports(_with_cached_verdicts(bench, opened, device), ideas, ceilings=_NO_MODEL_LIMIT)
        writer = _created(request, opened)
        lazy_blobs.blobs = writer.blobs
        return LiveSession(writer, ports)
    except BaseException:
        await bench.close()
        raise


def _created(request: NewSession, opened: SessionOpened) -> SessionWriter:
    """The session on disk with its seeds. On failure everything goes that was made here, and nothing that was there before."""
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
            if writer is not None:  # else what is new there is another process's
                writer.close()
                for path in set(folder.iterdir()) - before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            for place in made:
                place.rmdir()
        raise


async def resume(folder: Path, say: Say, device: str = "") -> LiveSession:
    """The session in ``folder``, ready to run here. On another device than before it is prepared again first.

    ``device`` overrides the device of the journal. Raises EspalierError: no session, locked, read-only, too new, or its
    device or compiler is not here.
    """
    state = store.state_of(folder)
    WriterLock(folder).release()
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    label = device or queries.device_label(state)
    proposers = _Proposers(opened.settings, catalog.folder(opened.problem))
    await check_compiler(label)
    bench = TrialBench(assignment(opened, label, state.preparation), Blobs(folder).put)
    try:
        say("reading the problem")
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

    ``commands`` is called with the writer, so that it can look at the state and store a kernel's source. Raises JournalError
    and its kinds, CommandRejected; commands before the one that was rejected have happened.
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
    """The assignment of the session's bench, on the device of the journal or on ``label``. ``known`` is an earlier preparation
    there, whose A/A interval and device ceilings are reused."""
    settings = opened.settings
    workload = catalog.workload_for(opened.problem, settings.workload)
    others = tuple(name for name in settings.others if name != settings.baseline)
    return Assignment(
        opened.problem, workload, label or opened.device, settings.tolerance, settings.baseline, others, settings.cold,
        (known.same.value, known.same.low, known.same.high) if known else None, peaks=known.peaks if known else None,
    )  # fmt: skip


async def check_compiler(device: str) -> None:
    """Raises ToolchainError when the compiler that the device's kernels need is missing."""
    if device == "cpu":
        await compilers.find_gxx()
    else:
        await compilers.find_nvcc()


async def _naive_port(
    bench: TrialBench, opened: SessionOpened, device: Device, signature: Signature, say: Say
) -> Draft | str | None:
    """A generated naive port; why there can be none; ``None`` where the playbook has one."""
    dialect = dialect_for(device, signature)
    folder = catalog.folder(opened.problem)
    if folder is not None and available(folder, dialect).root:
        return None
    say("writing a first port")
    try:
        graph = await bench.graph()
        workload = catalog.workload_for(opened.problem, opened.settings.workload)
        text = scaffold(opened.problem, workload, signature, graph, dialect)
        name = f"naive{dialect.suffix}"
        return Draft(text, dialect, classify(text, name)[1], name, {})
    except ProblemError as error:
        return str(error)


class _Proposers:
    """The session's proposers, before its naive port is known."""

    def __init__(self, settings: Settings, problem: Path | None) -> None:
        """Raises ProposerError for what is no source; JournalError where the session to recall replies from is not there or
        damaged."""
        self._root: Draft | None = None
        playbook = Playbook(problem, lambda dialect: self._root if self._root and self._root.dialect is dialect else None)
        self._mix = open_ideas(
            settings, playbook=playbook, open_model=_model_opener(settings), recall=_recorded_replies(settings)
        )

    def check(self) -> None:
        """Raises ProposerError, before anything is begun: no key for one of the sources, a base URL that is none. A session
        that goes on needs no key before a model is to be asked: it may only be measured here."""
        self._mix.open_all()

    def open(self, root: Draft | None) -> Proposer:
        """The proposer of all; ``root`` is the generated naive port, where the playbook has none."""
        self._root = root
        return self._mix


def _model_opener(settings: Settings) -> Callable[[str], Model]:
    def opened(name: str) -> Model:
        return registry.open_model(name, base_url=(settings.base_url or None) if Author(name).provider == "openai" else None)

    return opened


def _with_cached_verdicts(bench: TrialBench, opened: SessionOpened, here: Device) -> Bench:
    """The bench, which reuses the verdicts of the recalled session where they are valid here."""
    folder = Path(opened.settings.recall)
    if not opened.settings.recall or not store.is_session(folder):
        return bench
    recorded = store.state_of(folder)
    return CachedVerdictBench(bench, recorded, folder.name) if comparable(recorded, opened, here) else bench


def _recorded_replies(settings: Settings) -> Recall | None:
    if not settings.recall:
        return None
    recorded = Path(settings.recall)
    if not store.is_session(recorded):  # moved away, or left on another machine: nothing is answered, and spending still asks
        return Recall()
    return recorded_replies(store.state_of(recorded), Blobs(recorded).text)


def _check_no_session(folder: Path | None) -> None:
    if folder is not None and store.is_session(folder):
        advice = f"`espalier open {folder}` goes on with it, or name another folder"
        raise JournalError(f"{folder} already holds a session: {advice}")
