"""Test values and whole searches, built without a device, a compiler or a clock.

``opened()``, ``prepared()``, ``measured_kernel()`` and friends are events as the engine writes them; ``Walk`` drives the true
rules in memory; ``FakeBench`` answers any work as a function of the work alone, so that two walks can be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from support.applicable import misfit

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import model as m
from engine.domain import preparation as p
from engine.domain import rules
from engine.domain import work as w
from engine.domain.folds import advance
from engine.domain.hot_code import HotCode, HotLine
from engine.domain.machine_listing import ListedInstruction, MachineListing
from engine.domain.profile import Profile
from engine.domain.regimes import ClockAndPower, Sustained
from engine.domain.settings import Settings
from engine.domain.state import SessionState

START = 1_795_000_000.0
"""When every fixture's session opens: 18 November 2026, UTC."""
ENGINE = m.ENGINE
PLAYBOOK = m.Author("playbook")
MODEL = m.Author("openai:gpt-test")

REFERENCE = """import torch

batch_size = 128
dim = 16384


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(batch_size, dim)]


def get_init_inputs():
    return []
"""


def spelled(table: Mapping[w.WorkKey, Any]) -> dict[str, Any]:
    """A table of work, keyed as in the journal."""
    return {str(key): value for key, value in table.items()}


def digest(text: str) -> m.Blob:
    """The name of the blob with this text."""
    return hashlib.sha256(text.encode()).hexdigest()


def problem(name: str = "softmax") -> m.Problem:
    full = m.Workload("full", {"batch_size": 4096, "dim": 65536})
    small = m.Workload("small", {"batch_size": 128, "dim": 16384})
    holdout = m.Workload("small holdout 1", {"batch_size": 37, "dim": 5001})
    return m.Problem(name, "Softmax over rows", REFERENCE, digest(REFERENCE), (full, small), {"small": (holdout,)}, name)


def opened(*, mode: str = "autopilot", name: str = "softmax", **settings: Any) -> e.SessionOpened:
    """The first event; keywords are fields of ``Settings``."""
    versions = {"espalier": "0.1.0", "python": "3.11.7"}
    return e.SessionOpened(problem(name), "cpu", replace(Settings(), **settings), mode, versions)


def device(name: str = "two cores") -> m.Device:
    return m.Device("cpu", 0, name, "x86_64", 2, 32 << 20, 8 << 30, "torch 2.6.0")


def signature() -> m.Signature:
    x = m.Operand("x", m.Role.INPUT, (128, 16384), "float32")
    out = m.Operand("out", m.Role.OUTPUT, (128, 16384), "float32")
    return m.Signature((x, out), {"BATCH_SIZE": 128, "DIM": 16384, "EPS": 1e-5}, 1.05e7, "fp32")


def gate(*, fooled_by: str = "") -> p.CorrectnessCheck:
    """A correctness check that rejects all trivial models, or one that the named trivial model passes."""
    nulls = tuple(p.TrivialModel(name, name == fooled_by, 1.0) for name in ("zeros", "constant", "input echo"))
    classes = {"fp32": p.ClassErrors(1e-7, 3e-7), "half": p.ClassErrors(4e-4, 2e-3)}
    return p.CorrectnessCheck("class:fp32 (10x)", m.PrecisionClass.FP32, 1e-6, 3e-6, 10.0, classes, nulls)


def interval(value: float, spread: float = 0.02) -> m.Interval:
    return m.Interval(value, value * (1 - spread), value * (1 + spread))


def measurement(
    speedup: float = 1.5, *, depth: str = "precise", light: float | None = None, corroborated: bool = True,
    baseline: str = "eager",
) -> m.Measurement:  # fmt: skip
    """A measurement against a baseline of 3000 µs."""
    limit = m.SpeedOfLight("bytes", 3000.0 / speedup * light, light) if light is not None else None
    processes = 4 if depth == "precise" else 1
    return m.Measurement(
        depth, interval(3000.0 / speedup), 40 * processes, processes, {baseline: interval(speedup)}, limit, corroborated,
        ("cold caches",), digest(f"samples {speedup}"),
    )  # fmt: skip


def profile(duration_us: float = 812.25) -> Profile:
    return Profile(
        0, "ncu", "a machine", 2, {"duration_us": duration_us, "dram_percent": 86.5, "registers": 32.0},
        {"long scoreboard": 60.0, "barrier": 30.0}, log=digest("ncu"), seconds=14.5,
    )  # fmt: skip


def machine_listing() -> MachineListing:
    """A loop over the second line of a kernel, and what surrounds it."""
    loop = ListedInstruction("launch", 0x1104, "vfmadd132ps %ymm0,%ymm1,%ymm0", 2, 700, 1)
    jump = ListedInstruction("launch", 0x1109, "jne 1104 <launch+0x4>", 2, 100, 1, 0x1104)
    return MachineListing((ListedInstruction("launch", 0x1100, "mov %rdi,%rax", 1, 50), loop, jump), "objdump", 1000)


def hot_code(listing: m.Blob) -> HotCode:
    """The samples of ``machine_listing``, some of them in a library."""
    lines = (HotLine(2, "extern second", 800), HotLine(1, "// first", 50))
    return HotCode(1000, lines, {"libm.so.6": 150}, listing)


def verification() -> m.Verification:
    return m.Verification("class:fp32 (10x)", 8, 9e-8, 1e-6, 2e-8, 3e-7, 3e-6, m.PrecisionClass.FP32, "3/3")


def preparation(*, fooled_by: str = "") -> p.Preparation:
    peaks = p.Peaks(2.1e10, {"fp32": 1.2e11})
    baselines = {"eager": measurement(1.0), "compile": measurement(1.3)}
    return p.Preparation(
        signature(), gate(fooled_by=fooled_by), baselines, m.Interval(1.0, 0.99, 1.01), 800.0, "bytes", peaks, 16_777_216,
        "bubblewrap", ("two cores lent",), digest("problem.h"),
    )  # fmt: skip


def prepared(*, fooled_by: str = "", name: str = "two cores") -> e.SessionPrepared:
    return e.SessionPrepared(device(name), preparation(fooled_by=fooled_by))


_TITLES = (
    "Vectorise loads", "Fuse passes", "Split rows over cores", "Prefetch ahead", "Stream stores past the cache",
    "Unroll reduction", "Approximate exponential", "Block for cache", "Skip masked lanes", "Reorder accumulation",
    "Hoist invariants", "Pad tiles",
)  # fmt: skip


def idea_text(number: int = 1, *, key: str | None = None) -> m.IdeaText:
    """Distinct numbers give ideas that the near-duplicate rule keeps apart."""
    title = f"{_TITLES[number % len(_TITLES)]} variant{number} step{number}"
    category = m.CATEGORIES[number % len(m.CATEGORIES)]
    return m.IdeaText(title, category, f"Because reason{number}.", 1.2, f"idea_{number}" if key is None else key)


def proposed(
    *ideas: str, round_number: int = 0, parent: str | None = None, from_source: bool = True, branch: int = 1
) -> e.IdeasProposed:
    """Undecided ideas with these identities."""
    made = (e.ProposedIdea(i, idea_text(int(i[1:])), parent, PLAYBOOK, branch) for i in ideas)
    return e.IdeasProposed(round_number, tuple(made), from_source)


def drafted(
    kernel: str = "k1", *, idea: str = "i1", parent: str | None = None, round_number: int = 0, author: m.Author = PLAYBOOK,
    seed: bool = False, source: str = "", tunables: Mapping[str, int] | None = None,
) -> e.KernelDrafted:  # fmt: skip
    return e.KernelDrafted(
        kernel, idea, parent, round_number, author, f"{kernel}.cpp", m.Dialect.CPP, m.Contract.HOST,
        digest(source or f"source of {kernel}"), tunables or {}, seed,
    )  # fmt: skip


def built(kernel: str = "k1") -> e.KernelBuilt:
    return e.KernelBuilt(kernel, digest(f"artefact of {kernel}"), 0.8, (m.Resources("launch", 32, 0, 0),), digest("log"))


def verified(kernel: str = "k1", speedup: float = 1.5) -> e.KernelVerified:
    return e.KernelVerified(kernel, verification(), measurement(speedup, depth="screen"), 0.4)


def sustained(speedup: float = 1.5, **others: Any) -> Sustained:
    """Times in the sustained regime, on a GPU at its power limit."""
    time = interval(1000.0 / speedup)
    own, baseline = ClockAndPower(1410.0, 690.0), ClockAndPower(1395.0, 697.5)
    return replace(Sustained(time, {"eager": interval(speedup)}, 2000, 3, own, baseline, conditions=("settled",)), **others)


def measured(kernel: str = "k1", speedup: float = 1.5, *, light: float | None = None) -> e.KernelMeasured:
    return e.KernelMeasured(kernel, measurement(speedup, light=light), 1.5)


def measured_kernel(
    kernel: str = "k1", speedup: float = 1.5, *, idea: str = "i1", parent: str | None = None, round_number: int = 0,
    source: str = "", tunables: Mapping[str, int] | None = None,
) -> tuple[e.Event, ...]:  # fmt: skip
    """A kernel from draft to precise measurement."""
    draft = drafted(kernel, idea=idea, parent=parent, round_number=round_number, source=source, tunables=tunables)
    return (draft, built(kernel), verified(kernel, speedup), measured(kernel, speedup))


def failure(kind: m.FailureKind = m.FailureKind.BUILD_FAILED) -> m.Failure:
    return m.Failure(kind, "line 7: expected ';'", digest("compiler output"))


def first_round(speedup: float = 1.0, **settings: Any) -> tuple[e.Event, ...]:
    """Events of a session up to the end of round 0: one root kernel ``k1``, measured."""
    return (
        opened(**settings),
        prepared(),
        e.RoundOpened(0, ()),
        proposed("i1"),
        e.IdeaSelected("i1"),
        drafted("k1"),
        e.IdeaImplemented("i1", ("k1",)),
        built(),
        verified(speedup=speedup),
        measured(speedup=speedup),
        e.RoundClosed(0),
    )


def entries(events: Iterable[e.Event], start: int = 0, at: float = START) -> tuple[e.Entry, ...]:
    """The events numbered as in a journal, one per second."""
    return tuple(e.Entry(start + n, at + start + n, ENGINE, event) for n, event in enumerate(events))


def fold(*events: e.Event) -> SessionState:
    return advance(SessionState(), entries(events))


def contents(state: SessionState) -> dict[str, object]:
    """A state field by field, as plain comparable values (states themselves compare by identity)."""
    values = {f.name: getattr(state, f.name) for f in fields(state)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


class FakeBench:
    """Answers every work with a result that depends only on the work and the kernel's code, not on the order.

    About one source in five does not build and one in six of the others is wrong, as a hash of it says, unless the bench is
    ``reliable``; the root always is right. Speedups lie between 0.5 and 3. A model as ``author`` repairs what failed.
    """

    def __init__(self, *, author: m.Author = PLAYBOOK, reliable: bool = False) -> None:
        self.author = author
        self.reliable = reliable

    def perform(self, state: SessionState, work: w.Work) -> w.Result:
        match work:
            case w.Prepare():
                return w.Prepared(device(), preparation())
            case w.Propose():
                return w.Proposals(tuple(self._proposal(work, n) for n in range(max(1, work.count))))
            case w.Implement():
                return self._drafts(state, work.idea)
            case w.Repair():
                return w.Repaired(digest(f"repair of {state.kernels[work.kernel].source}"))
            case w.Sanitize():
                source = state.kernels[work.kernel].source
                unsafe = not self.reliable and source != digest("root") and int(source[:8], 16) % 7 == 0
                return w.Sanitized(("address",), ("heap-buffer-overflow",) if unsafe else ())
            case w.ReadCounters():
                return w.Profiled(profile())
            case w.Race():
                one, other = (_speedup_of(state.kernels[name].source) for name in (work.kernel, work.against))
                return w.Raced(interval(one / other), 3, 18, raw=digest(f"samples of {work.key}"), seconds=0.5)
        return self._trial(state.kernels[work.kernel].source, work)

    def _proposal(self, work: w.Propose, number: int) -> w.Proposal:
        parent = work.parents[number % len(work.parents)] if work.parents else None
        return w.Proposal(idea_text(100 * (work.round + 1) + number), parent, self.author)

    def _drafts(self, state: SessionState, idea_id: str) -> w.Drafts:
        idea = state.ideas[idea_id]
        sources = ["root"] if idea.round == 0 else [f"{idea.text.title} {n}" for n in range(idea.branch)]
        cpp, host = m.Dialect.CPP, m.Contract.HOST
        made = (w.StoredDraft(f"{idea_id}-{n}.cpp", cpp, host, digest(s), self.author) for n, s in enumerate(sources))
        return w.Drafts(tuple(made))

    def _trial(self, source: m.Blob, work: w.Build | w.Verify | w.Measure) -> w.Result:
        dice = int(source[:8], 16)
        sound = self.reliable or source == digest("root")
        speedup = _speedup_of(source)
        match work:
            case w.Build() if not sound and dice % 5 == 0:
                return w.Failed(failure(), 0.5)
            case w.Verify() if not sound and dice % 6 == 0:
                return w.Failed(failure(m.FailureKind.MISMATCH), 0.5)
            case w.Build():
                return w.Built(digest(f"artefact {source}"), 0.5)
            case w.Verify():
                return w.Verified(verification(), measurement(speedup, depth="screen"), 0.5)
        return w.Measured(measurement(speedup), 0.5)


def _speedup_of(source: m.Blob) -> float:
    return 0.5 + (int(source[:8], 16) % 1000) / 400


class Walk:
    """A session in memory: the real rules, a log, and a clock that ticks once per event."""

    def __init__(self, log: Iterable[e.Entry] = (), *, tick: float = 1.0) -> None:
        self.log: list[e.Entry] = list(log)
        self.state = advance(SessionState(), self.log)
        self.tick = tick

    def write(self, events: Iterable[e.Event], by: m.Author = ENGINE) -> None:
        """Log the events and advance; fails on an invalid event."""
        now = (self.log[-1].at if self.log else START) + self.tick
        for event in events:
            wrong = misfit(self.state, event)
            assert not wrong, f"{event.KIND}: {wrong}"
            entry = e.Entry(len(self.log), now, by, event)
            self.log.append(entry)
            self.state = advance(self.state, (entry,))

    def submit(self, command: c.Command) -> None:
        self.write(rules.decide(self.state, command), by=m.ENGINEER)

    def settle(self) -> None:
        """Apply all automatic transitions; fails if they do not terminate."""
        for _ in range(1000):
            events = rules.automatic(self.state)
            if not events:
                return
            self.write(events)
        raise AssertionError("automatic transitions never end")

    def start(self, work: w.Work) -> None:
        self.write((e.WorkStarted(str(work.key)),))

    def finish(self, work: w.Work, result: w.Result) -> None:
        self.write(rules.record(self.state, work, result))

    def drive(self, bench: FakeBench, steps: int = 5000) -> None:
        """Do one work item after another, in order of priority, until none is owed."""
        for _ in range(steps):
            self.settle()
            owed = rules.next_work(self.state)
            if not owed:
                return
            self.start(owed[0])
            self.finish(owed[0], bench.perform(self.state, owed[0]))
        raise AssertionError("the search never ends")


def walk(bench: FakeBench | None = None, *, mode: str = "autopilot", **settings: Any) -> Walk:
    """A whole search, run to its end (or to the first decision in ask mode)."""
    made = Walk()
    made.write((opened(mode=mode, **settings),))
    made.drive(bench or FakeBench())
    return made
