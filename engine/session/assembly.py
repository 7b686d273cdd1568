"""A problem, its settings and a device → a live session with its bench and its source of ideas. Faces begin and resume here.

Knows which rooms a session is made of and in which order what can be wrong is found out: everything that bad input can cause
is found before a session's folder is made. Decides nothing about the search. No torch.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from engine.build import toolchain, tunables
from engine.build.scaffold import scaffold
from engine.build.source import KernelSource, classify
from engine.domain import queries
from engine.domain import work as w
from engine.domain.commands import Command, SeedKernel
from engine.domain.errors import EspalierError, JournalError, ProblemError, SourceError
from engine.domain.events import SessionOpened
from engine.domain.model import Author, Blob, Device, Dialect, Draft, Problem, Settings, Signature
from engine.domain.preparation import Preparation
from engine.domain.state import Kernel, SessionState
from engine.ideas.mix import PASTE, PLAYBOOK
from engine.ideas.models import registry
from engine.ideas.models.model import Model
from engine.ideas.opening import open_ideas
from engine.ideas.playbook import Playbook, available
from engine.ideas.recall import Recall, recorded_replies
from engine.ideas.source import Calls, CodeRequest, IdeaRequest, IdeaSource, Implementation, RepairRequest
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.journal.lock import WriterLock
from engine.problem import catalog
from engine.problem.graph_ir import from_json
from engine.session.live import LiveSession, Ports
from engine.session.perform import Ceilings
from engine.session.ports import Bench, Say
from engine.session.recalling import RecallingBench, comparable
from engine.trial.bench import Assignment, TrialBench

SOURCES = (PLAYBOOK, PASTE)
"""Sources of ideas that need no key."""

_PATIENT = Ceilings(thought=None)
"""A person may be asked, and takes as long as they take; models have time limits of their own."""

_SUFFIX = {Dialect.CUDA: ".cu", Dialect.CPP: ".cpp", Dialect.PYTHON: ".py"}


@dataclass(frozen=True, slots=True)
class Seed:
    """A kernel brought in by hand, with the value of each of its tunables."""

    kernel: KernelSource
    tunables: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a new session is asked for."""

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
    """Measure every baseline anew, whatever is kept of them from earlier sessions."""


@dataclass(slots=True)
class _Shelf:
    """Where a bench keeps payloads once the session's folder is known."""

    blobs: Blobs | None = None

    def put(self, payload: bytes) -> Blob:
        if self.blobs is None:
            raise RuntimeError("nothing is kept before the session has a folder")
        return self.blobs.put(payload)


async def begin(wanted: NewSession, say: Say) -> LiveSession:
    """A new session, ready to run, its seeds planted.

    Raises EspalierError for whatever is wrong with problem, device, settings, seeds, compiler or folder; then no folder is left
    behind that was not there.
    """
    _check_free(wanted.folder)
    ideas_of = _Ideas(wanted.settings, catalog.folder(wanted.problem))
    ideas_of.check()
    workload = catalog.workload_for(wanted.problem, wanted.settings.workload)
    opened = SessionOpened(
        wanted.problem, wanted.device, replace(wanted.settings, workload=workload.name), wanted.mode, versions()
    )
    for seed in wanted.seeds:
        check_dialect(seed.kernel, wanted.device)
    await check_compiler(wanted.device)
    shelf = _Shelf()
    bench = TrialBench(replace(assignment(opened), fresh=wanted.fresh), shelf.put)
    try:
        say("reading the problem")
        device, signature = await bench.describe()
        root = await _first_port(bench, opened, device, signature, say)
        if isinstance(root, str) and not wanted.seeds:
            raise ProblemError(f"{wanted.problem.name}: no first kernel: {root}; bring one with --seed-kernel FILE")
        ideas = ideas_of.open(root if isinstance(root, Draft) else None)
        folder = wanted.folder or store.new_folder(wanted.problem.name)
        shelf.blobs = Blobs(folder)
        live = LiveSession.create(folder, opened, Ports(_recalling(bench, opened, device), ideas, ceilings=_PATIENT))
    except BaseException:
        await bench.close()
        raise
    for seed in wanted.seeds:
        await live.submit(planting(live, seed))
    return live


def planting(live: LiveSession, seed: Seed, parent: str | None = None, idea: str | None = None, title: str = "") -> SeedKernel:
    """The command that brings a kernel into this session; its source is stored there."""
    kernel = seed.kernel
    source = live.store_blob(kernel.text.encode("utf-8", "replace"))
    return SeedKernel(kernel.name, kernel.dialect, kernel.contract, source, seed.tunables, parent, idea, title)


async def resume(folder: Path, say: Say, device: str = "") -> LiveSession:
    """The session in ``folder``, ready to go on here; on another device than before it is prepared anew first.

    ``device`` overrides where it ran before. Raises EspalierError: no session, locked, read-only, too new, or its device or
    compiler is not here.
    """
    state = store.state_of(folder)
    WriterLock(folder).release()
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    label = device or (state.device.label if state.device else opened.device)
    ideas_of = _Ideas(opened.settings, catalog.folder(opened.problem))
    await check_compiler(label)
    bench = TrialBench(assignment(opened, label, state.preparation), Blobs(folder).put)
    try:
        say("reading the problem")
        here, signature = await bench.describe()
        root = None if state.kernels else await _first_port(bench, opened, here, signature, say)
        ideas = ideas_of.open(root if isinstance(root, Draft) else None)
        moved = state.device is not None and not queries.same_device(state.device, here)
        ports = Ports(_recalling(bench, opened, here), ideas, ceilings=_PATIENT)
        return LiveSession.resume(folder, ports, prepare_again=moved)
    except BaseException:
        await bench.close()
        raise


async def steer(folder: Path, commands: Callable[[LiveSession], Sequence[Command]]) -> tuple[SessionState, SessionState]:
    """Submit commands to a session without going on with it; returns the states before and after.

    ``commands`` is called with the session, so that it can look at its state and store a kernel's source. Raises JournalError
    and its kinds, CommandRejected; commands before the one that was rejected have happened.
    """
    async with LiveSession.resume(folder, Ports(_NoBench(), _NoIdeas())) as live:
        before = live.state
        for command in commands(live):
            await live.submit(command)
        return before, live.state


def versions() -> dict[str, str]:
    """What this session is made with."""
    found = {"python": platform.python_version()}
    for package in ("espalier", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def assignment(opened: SessionOpened, label: str = "", known: Preparation | None = None) -> Assignment:
    """What the session's bench is for: on the device that it was opened for, or on the one named by ``label``; ``known`` is
    what was found out there before (what the reference showed against itself, the device's ceilings)."""
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
        await toolchain.find_gxx()
    else:
        await toolchain.find_nvcc()


def check_dialect(kernel: KernelSource, device: str) -> None:
    """Raises ProblemError for a kernel that cannot run on this device (``cpu`` or ``cuda:N``)."""
    match kernel.dialect, device:
        case Dialect.CUDA, "cpu":
            raise ProblemError(f"{kernel.name} is a cuda kernel and runs on no CPU: use a GPU with --device cuda:0")
        case Dialect.CPP, other if other != "cpu":
            raise ProblemError(f"{kernel.name} is a cpp kernel and runs on no GPU: use --device cpu")
        case _:
            pass


def seed_of(kernel: KernelSource, chosen: Mapping[str, int]) -> Seed:
    """A kernel with these values of its tunables, and the defaults of the others.

    Raises SourceError for a tunable that the source does not declare, or lines that cannot be read.
    """
    declared = tunables.default(tunables.parse_tunables(kernel.text, kernel.dialect))
    for name in chosen:
        if name not in declared:
            there = f"it has {', '.join(declared)}" if declared else "it has none"
            raise SourceError(f"{kernel.name} declares no tunable {name!r}: {there}")
    return Seed(kernel, {**declared, **chosen})


def dialect_for(device: Device, signature: Signature) -> Dialect:
    """What first ports are written in on this device for this problem."""
    if not signature.scalar_only:
        return Dialect.PYTHON
    return Dialect.CUDA if device.kind == "cuda" else Dialect.CPP


async def _first_port(
    bench: TrialBench, opened: SessionOpened, device: Device, signature: Signature, say: Say
) -> Draft | str | None:
    """A generated first port where the playbook has none; why there can be none, in words; ``None`` where none is needed."""
    dialect = dialect_for(device, signature)
    folder = catalog.folder(opened.problem)
    if folder is not None and available(folder, dialect).root:
        return None
    say("writing a first port")
    try:
        graph = from_json(await bench.graph())
        workload = catalog.workload_for(opened.problem, opened.settings.workload)
        text = scaffold(opened.problem, workload, signature, graph, dialect)
        name = f"naive{_SUFFIX[dialect]}"
        return Draft(text, dialect, classify(text, name)[1], name, {})
    except ProblemError as error:
        return str(error)


class _Ideas:
    """The session's source of ideas, before its first port is known."""

    def __init__(self, settings: Settings, problem: Path | None) -> None:
        """Raises IdeaSourceError for what is no source; JournalError where the session to recall replies from is not there or
        damaged."""
        self._root: Draft | None = None
        playbook = Playbook(problem, lambda dialect: self._root if self._root and self._root.dialect is dialect else None)
        self._mix = open_ideas(settings, playbook=playbook, open_model=_opener(settings), recall=_recall(settings))

    def check(self) -> None:
        """Raises IdeaSourceError, before anything is begun: no key for one of the sources, a base URL that is none. A session
        that goes on needs no key before a model is to be asked: it may only be measured here."""
        self._mix.open_all()

    def open(self, root: Draft | None) -> IdeaSource:
        """With this generated first port, where the playbook has none."""
        self._root = root
        return self._mix


def _opener(settings: Settings) -> Callable[[str], Model]:
    def opened(name: str) -> Model:
        return registry.open_model(name, base_url=(settings.base_url or None) if name.startswith("openai:") else None)

    return opened


def _recalling(bench: TrialBench, opened: SessionOpened, here: Device) -> Bench:
    """The bench, answering from the session that this one recalls where its verdicts hold here."""
    folder = Path(opened.settings.recall)
    if not opened.settings.recall or not store.is_session(folder):
        return bench
    recorded = store.state_of(folder)
    return RecallingBench(bench, recorded, folder.name) if comparable(recorded, opened, here) else bench


def _recall(settings: Settings) -> Recall | None:
    if not settings.recall:
        return None
    recorded = Path(settings.recall)
    if not store.is_session(recorded):  # moved away, or left on another machine: nothing is answered, and spending still asks
        return Recall()
    return recorded_replies(store.state_of(recorded), Blobs(recorded).text)


def _check_free(folder: Path | None) -> None:
    if folder is not None and store.is_session(folder):
        advice = f"`espalier open {folder}` goes on with it, or name another folder"
        raise JournalError(f"{folder} already holds a session: {advice}")


@dataclass(frozen=True, slots=True)
class _NoBench:
    """Where nothing is run: a session that is only told something."""

    refusal: w.Impossible = field(default_factory=lambda: w.Impossible("this session is only being steered"))

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible:
        return self.refusal

    async def build(self, kernel: Kernel, source: str, say: Say) -> w.Built | w.Failed | w.Impossible:
        return self.refusal

    async def verify(self, kernel: Kernel, source: str, say: Say) -> w.Verified | w.Failed | w.Impossible:
        return self.refusal

    async def measure(self, kernel: Kernel, source: str, say: Say) -> w.Measured | w.Failed | w.Impossible:
        return self.refusal

    async def race(
        self, kernel: Kernel, source: str, other: Kernel, other_source: str, effort: int, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        return self.refusal

    async def sanitize(self, kernel: Kernel, source: str, say: Say) -> w.Sanitized | w.Impossible:
        return self.refusal

    async def close(self) -> None:
        """There is nothing to let go of."""


@dataclass(frozen=True, slots=True)
class _NoIdeas:
    """Asked for nothing while a session is only being steered."""

    author: Author = field(default_factory=lambda: Author("engine"))

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[w.Proposal, ...]:
        raise EspalierError("this session is only being steered")

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        raise EspalierError("this session is only being steered")

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        return None

    async def close(self) -> None:
        """There is nothing to let go of."""
