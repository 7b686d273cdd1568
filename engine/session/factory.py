"""Creates, resumes and steers sessions: connects a session's writer with its bench and its proposers.

Rejects bad input before it creates a session's folder. Decides nothing about the search. Never imports torch.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from engine.codegen.scaffold import scaffold
from engine.domain import columns, queries
from engine.domain import commands as c
from engine.domain.errors import JournalError, ProblemError
from engine.domain.events import SessionOpened
from engine.domain.model import ENGINEER, PLAYBOOK, Blob, Device, Dialect, Draft, Problem, Signature
from engine.domain.preparation import Preparation
from engine.domain.settings import ModelSettings, Settings
from engine.domain.state import SessionState
from engine.domain.trust import Permissions
from engine.fleet.bench import FleetBench
from engine.ideas.factory import OpenModel, check_prices, check_programs, check_servers, open_ideas
from engine.ideas.mix import PASTE, proposers_of
from engine.ideas.models import registry
from engine.ideas.models.model import Model
from engine.ideas.playbook import Playbook, available
from engine.ideas.proposer import Proposer
from engine.ideas.recall import Recall, recorded_replies
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.journal.lock import SESSIONS, require_creatable, require_writable
from engine.journal.user_folders import sessions_root
from engine.problem import catalog
from engine.report.text.shell import shell_name
from engine.sandbox.trial_sandbox import find_judge_reason
from engine.session import priors, trust
from engine.session.benches import SessionBench, open_bench
from engine.session.cached_verdicts import CachedVerdictBench, comparable
from engine.session.live import LiveSession, Ports
from engine.session.ports import Bench, Say
from engine.session.requirements import check_requirements, sandbox_warning
from engine.session.seeds import Seed, check_dialect, dialect_for, needed_device, seed_command, seed_from_text
from engine.session.writer import SessionWriter
from engine.toolchain.normal_form import form_digest
from engine.trial.bench import Assignment

KEYLESS_PROPOSERS = (PLAYBOOK, PASTE)
"""Proposers that need no key."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """The settings of a new session."""

    problem: Problem
    device: str
    """``cpu`` or ``cuda:N``."""
    settings: Settings
    """``workload`` is any name that ``catalog.workload_for`` accepts; the session records the workload's own name, with a
    ``suite`` that of its first one."""
    mode: str = "autopilot"
    folder: Path | None = None
    """``None``: a new folder in the default place."""
    seeds: tuple[Seed, ...] = ()
    """Kernels to seed before the first round."""
    prior: bool = True
    """Start the adaptive strategy from what categories of ideas gained in earlier sessions."""
    fresh: bool = False
    """Calibrate and measure every baseline again instead of reusing the preparation of an earlier evaluation or session."""
    fleet: str = ""
    """The workers to measure on, as ``--fleet`` takes them; empty: one device."""


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
    _check_new(request.folder)
    await find_judge_reason()  # remembered: what follows does not block on it
    trust.require_problem(request.problem)
    proposers = _Proposers(
        request.settings, catalog.folder(request.problem), _Permission(trust.named_here(request.settings.models))
    )
    proposers.check()
    await check_servers(request.settings.models)
    settings = request.settings
    workload = catalog.workloads_for(request.problem, "", settings.suite, settings.workload)[0]
    opened = SessionOpened(request.problem, request.device, replace(settings, workload=workload.name), request.mode, versions())
    for seed in request.seeds:
        check_dialect(seed.kernel, request.device)
    if (asked := request.settings.dialect) and (needed := needed_device(Dialect(asked), request.device)):
        raise ProblemError(f"--dialect {asked} {needed}")
    await check_requirements(request.device, asked)
    lazy_blobs = _LazyBlobs()
    bench = await open_bench(replace(_assignment(opened), prepared=True, fresh=request.fresh), lazy_blobs.put, request.fleet)
    try:
        if warning := sandbox_warning():
            say(warning)
        say("loading torch and the problem")
        device, signature = await bench.describe(say, ceilings=True)
        opened = await _with_prior(request, opened, device, say)
        root = await _naive_port(bench, opened, device, signature, say)
        if isinstance(root, _NoPort) and not request.seeds:
            raise ProblemError(
                f"{request.problem.name}: no naive port: {root.reason}; provide a first kernel with --seed-kernel FILE"
            )
        ports = _ports(bench, opened, device, proposers, root)
        writer = _created(request, opened)
        lazy_blobs.blobs = writer.blobs
        proposers.permission.created(writer.folder, writer.state)
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
            writer.submit(seed_command(writer.store_blob, seed, workloads=columns.workloads(writer.state)), ENGINEER)
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


async def _with_prior(request: NewSession, opened: SessionOpened, device: Device, say: Say) -> SessionOpened:
    """The session's first event with the prior, if the adaptive strategy or a model's prompt has a use for it."""
    asks_models = any(name != PLAYBOOK for name in proposers_of(opened.settings.models))
    if not request.prior or not (asks_models or opened.settings.strategy == "adaptive"):
        return opened
    prior = await asyncio.to_thread(priors.learnt, device)
    say(priors.words(prior))
    return replace(opened, settings=replace(opened.settings, prior=prior))


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A session to resume, and what changes when it goes on."""

    folder: Path
    device: str = ""
    """``cpu`` or ``cuda:N``; empty: the one that it ran on before."""
    mode: str = ""
    """Who approves ideas from now on; empty: as before."""
    fresh: bool = False
    """Measure the baselines again, then the incumbent, the best and the pinned kernels."""
    fleet: str = ""
    """As in ``NewSession``."""

    def options(self) -> tuple[str, ...]:
        """The options of ``espalier open`` that were given."""
        given = {"--device": self.device, "--fleet": self.fleet, "--mode": self.mode, "--fresh-baselines": self.fresh}
        return tuple(name for name, value in given.items() if value)


async def resume(saved: SavedSession, say: Say) -> LiveSession:
    """Open a session, ready to run here. On another device than before, or on request, it is prepared again first.

    Raises EspalierError if there is no session, if it is locked, read-only or too new, or if its device or compiler is missing
    here; UntrustedError if it was made elsewhere and the user has not allowed what it would run.
    """
    folder = saved.folder
    state = store.state_of(folder)
    require_writable(folder)  # before anything expensive
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    label = saved.device or queries.device_label(state)
    await find_judge_reason()
    permission = _Permission(trust.require(folder, state), folder)
    proposers = _Proposers(opened.settings, catalog.folder(opened.problem), permission)
    await check_requirements(label, opened.settings.dialect)
    model = state.device.name if state.device is not None else ""
    known = None if saved.fresh else state.preparation
    given = replace(_assignment(opened, label, known), prepared=True, fresh=saved.fresh)
    bench = await open_bench(given, Blobs(folder).put, saved.fleet, model)
    try:
        if warning := sandbox_warning():
            say(warning)
        say("loading torch and the problem")
        here, signature = await bench.describe(say, ceilings=known is None)
        root = None if state.kernels else await _naive_port(bench, opened, here, signature, say)
        moved = state.device is not None and not queries.same_device(state.device, here)
        ports = _ports(bench, opened, here, proposers, root)
        live = LiveSession.resume(folder, ports, prepare_again=moved or saved.fresh)
        await _allow_again(live, saved.mode)
        return live
    except BaseException:
        await bench.close()
        raise


async def _allow_again(live: LiveSession, mode: str) -> None:
    """Ask again whether the session may run, now that it is locked, and set who approves ideas.

    Closes the session if that fails, with UntrustedError where its journal changed between the first reading and the lock.
    """
    try:
        trust.require(live.folder, live.state)
        if mode and mode != str(live.state.mode):
            await live.submit(c.SetMode(mode))
    except BaseException:
        await live.close()
        raise


def versions() -> dict[str, str]:
    """The versions that a session records."""
    found = {"python": platform.python_version()}
    for package in ("espalier", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def assignment(folder: Path, state: SessionState, label: str = "") -> Assignment:
    """The assignment of a bench for a recorded session, on the device of the journal or on ``label``.

    Raises UntrustedError if the session was made elsewhere and the user has not allowed what it would run.
    """
    trust.require(folder, state)
    assert state.opened is not None, "a journal begins with it"
    return _assignment(state.opened, label)


def _assignment(opened: SessionOpened, label: str = "", known: Preparation | None = None) -> Assignment:
    """The A/A interval and the measured peaks of ``known``, an earlier preparation on that device, are reused."""
    settings = opened.settings
    workload, *rest = catalog.workloads_for(opened.problem, "", settings.suite, settings.workload)
    others = tuple(name for name in settings.others if name != settings.baseline)
    return Assignment(
        opened.problem, workload, label or opened.device, settings.tolerance, settings.baseline, others, settings.cold,
        (known.same.value, known.same.low, known.same.high) if known else None, peaks=known.peaks if known else None,
        rest=tuple(rest), suite=settings.suite,
        sames={one.workload: (one.same.value, one.same.low, one.same.high) for one in known.by_workload} if known else {},
    )  # fmt: skip


def _ports(
    bench: SessionBench, opened: SessionOpened, device: Device, proposers: _Proposers, root: Draft | _NoPort | None
) -> Ports:
    """What a live session works through. ``root``: as ``_naive_port`` returns it."""
    return Ports(
        _with_cached_verdicts(bench, opened, device), proposers.open(root if isinstance(root, Draft) else None),
        steered=proposers.permission.steered, form=form_digest, workers=bench if isinstance(bench, FleetBench) else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _NoPort:
    """Why no naive port could be generated."""

    reason: str


async def _naive_port(
    bench: SessionBench, opened: SessionOpened, device: Device, signature: Signature, say: Say
) -> Draft | _NoPort | None:
    """The generated naive port, if one can be generated; ``None`` if the playbook has one."""
    dialect = dialect_for(device, signature, opened.settings.dialect)
    folder = catalog.folder(opened.problem)
    if folder is not None and available(folder, dialect).root:
        return None
    say("generating the naive port")
    try:
        settings = opened.settings
        workloads = catalog.workloads_for(opened.problem, "", settings.suite, settings.workload)
        text = scaffold(opened.problem, workloads, await bench.traced(), dialect)
        name = f"naive{dialect.suffix}"
        port = seed_from_text(text, name)
        return Draft(text, dialect, port.kernel.contract, name, port.tunables)
    except ProblemError as error:
        return _NoPort(str(error))


@dataclass(slots=True)
class _Permission:
    """What a session that runs here may contact. The user extends it by naming a further proposer or writer."""

    allowed: Permissions
    folder: Path | None = None
    """``None`` until the session's folder exists."""

    def created(self, folder: Path, state: SessionState) -> None:
        """Record that the session was made here."""
        self.folder, self.allowed = folder, trust.needs_of(state)
        trust.made_here(folder, state)

    def steered(self, state: SessionState) -> None:
        """Allow what a command of the user has named."""
        if self.folder is not None:
            self.allowed = trust.extend(self.folder, self.allowed, trust.needs_of(state))

    def name(self, name: str, models: ModelSettings) -> bool:
        """Whether the server of this model gets a key. The state was checked when the session was opened, so a name that is
        not allowed yet comes from a command of the user."""
        needs = trust.needs_of_name(name, models)
        server = models.server(name)
        with_key = set(needs.servers) <= set(self.allowed.servers) or server is None or not (server.url or server.key)
        if self.folder is not None and with_key:
            self.allowed = trust.extend(self.folder, self.allowed, needs)
        return with_key


class _Proposers:
    """The session's proposers, created before its naive port is known."""

    def __init__(self, settings: Settings, problem: Path | None, permission: _Permission) -> None:
        """Raises ProposerError for an unknown proposer; JournalError if the session to recall replies from is damaged."""
        self.permission = permission
        self._root: Draft | None = None
        playbook = Playbook(problem, lambda dialect: self._root if self._root and self._root.dialect is dialect else None)
        opener = _model_opener(permission)
        self._settings = settings
        self._mix = open_ideas(settings, playbook=playbook, open_model=opener, recall=_recorded_replies(settings))

    def check(self) -> None:
        """Raises ProposerError if a key or a program is missing, a server invalid or out of reach, or a price unknown that a
        limit needs. Not called for resumed sessions, which need a key only when they ask a model."""
        check_programs(self._settings.models)
        check_prices(self._settings)
        self._mix.open_all()

    def open(self, root: Draft | None) -> Proposer:
        """The session's proposer; ``root`` is the generated naive port if the playbook has none."""
        self._root = root
        return self._mix


def _model_opener(permission: _Permission) -> OpenModel:
    def opened(name: str, models: ModelSettings) -> Model:
        limits = registry.limits_of(models.concurrency)
        return registry.open_model(name, server=models.server(name), with_key=permission.name(name, models), limits=limits)

    return opened


def _with_cached_verdicts(bench: SessionBench, opened: SessionOpened, here: Device) -> Bench:
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


def _check_new(folder: Path | None) -> None:
    """Before anything expensive: the folder of a new session holds none, and can be written."""
    require_creatable(*((sessions_root(), SESSIONS) if folder is None else (folder,)))
    if folder is not None and store.holds_events(folder):
        resume = f"resume it with `espalier open {shell_name(folder)}`, or name another folder"
        raise JournalError(f"{folder} already holds a session: {resume}")
