"""Searches without a model or a device: landscapes of optimisations, a proposer that walks on them, and a fast driver.

The simulated part is the world: which optimisations exist, what they gain together, how well a writer implements an idea, how
often it fails, and how badly its author predicts the gain. The search is *not* simulated. Rounds, parents, duplicates, ranking,
incumbents and limits are ``engine.domain.rules`` and ``engine.domain.queries``; effects go through ``engine.session.perform``.
``tests/report`` shows that a ``LiveSession`` with the same ports grows the same tree.

``benchmarks/families`` has one readable file for each family; ``family`` reads one.

A kernel's true speed is exp(structure(moves) + polish): ``moves`` are the optimisations that it contains, ``polish`` (≤ 0) is
the speed that its writer lost. A writer inherits half of the parent's polish and adds its own loss.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from engine.domain import events as e
from engine.domain import rules
from engine.domain import work as w
from engine.domain.errors import JournalCorrupt
from engine.domain.folds import advance
from engine.domain.model import CATEGORIES, ENGINE, Author, Blob, Contract, Dialect, Draft, IdeaText, Interval, Measurement
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, SessionState
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, Proposer, RepairRequest
from engine.journal.blobs import Blobs
from engine.session.fake_bench import FakeBench
from engine.session.perform import Effects, perform
from engine.session.ports import Bench, Say

BASELINE_US = 1000.0
"""Time of the naive port; ``FakeBench`` measures speedups against it."""
AUTHOR = Author("simulated")
POLISH = "polish"
"""The idea to rewrite the same kernel with more care."""


class Landscape(Protocol):
    """The optimisations and their joint gain."""

    def open(self, moves: frozenset[int]) -> Sequence[int]:
        """Optimisations that can be applied next."""
        ...

    def structure(self, moves: frozenset[int]) -> float:
        """Logarithm of the speedup over the naive port with these optimisations in perfect code."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """One family of landscapes, and the quality of ideas and code on it."""

    name: str
    words: str
    failures: float = 0.25
    """Share of drafts that do not build or are wrong."""
    sloppiness: float = 0.08
    """Typical loss (in logarithms) that a writer adds."""
    foresight: float = 0.3
    """Standard deviation of the error (in logarithms) of an idea's predicted gain."""
    noise: float = 0.01
    """Standard deviation of a measurement (in logarithms)."""
    undo: bool = True
    """Whether an optimisation can be removed again."""
    sight: float = 1.0
    """How much of the true gain a prediction contains; -1 for an author whose predictions are inverted."""
    failures_at_end: float | None = None
    """Share of drafts that fail after ``drift`` drafts, if the share changes."""
    drift: int = 46


FAMILY_FILES = Path(__file__).parent / "families"
_SHAPES = frozenset({"kind", "group", "exclusive", "levels", "width", "spread", "size", "neighbours", "scale"})


@dataclass(frozen=True, slots=True)
class Family:
    """A family of landscapes, as its file describes it."""

    world: World
    make: Callable[[random.Random], Landscape]
    """A landscape of the family."""


def families(folder: Path = FAMILY_FILES) -> dict[str, Family]:
    """All families of a folder by name."""
    return {path.stem.replace("_", " "): family(path) for path in sorted(folder.glob("*.toml"))}


def family(path: Path) -> Family:
    """Read a family's file. Raises ValueError for an unknown key or kind."""
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    world = {key: value for key, value in given.items() if key not in _SHAPES}
    if unknown := world.keys() - World.__dataclass_fields__.keys():
        raise ValueError(f"{path.name}: unknown key {min(unknown)!r}")
    name = path.stem.replace("_", " ")
    return Family(World(name, **world), functools.partial(_landscape, given, name))


def _landscape(given: Mapping[str, Any], name: str, dice: random.Random) -> Landscape:
    match given["kind"]:
        case "net":
            return _net(given, dice)
        case "forks":
            return Forks(str(dice.random()), given["levels"], given["width"], given["spread"])
        case "rugged":
            return Rugged(str(dice.random()), given["size"], given["neighbours"], given["scale"])
    raise ValueError(f"{name}: unknown kind {given['kind']!r}: use net, forks or rugged")


def _net(given: Mapping[str, Any], dice: random.Random) -> Net:
    """A group's keys: ``values`` and ``first``, fixed gains of its first optimisations; ``count`` and the range ``gain`` of the
    others; ``chain``, the length of chains in which each needs the last; ``spoils``, how many of another group each spoils;
    ``exclusive``, whether a kernel with the group's first optimisation can contain no other exclusive group's."""
    gains: list[float] = []
    after: dict[int, int] = {}
    exclusive: dict[int, int] = {}
    members: list[range] = []
    for group in given["group"]:
        start = len(gains)
        fixed = [*group.get("values", ()), *([group["first"]] if "first" in group else ())]
        drawn = group.get("count", 0) - ("first" in group)
        gains += [*fixed, *(dice.uniform(*group["gain"]) for _ in range(max(0, drawn)))]
        members.append(range(start, len(gains)))
        if length := group.get("chain", 0):
            after |= {m: m - 1 for m in members[-1] if (m - start) % length}
        if group.get("exclusive", given.get("exclusive", False)):
            exclusive[start] = 0
    spoils = {
        move: frozenset(dice.sample(members[rule["group"]], rule["count"]))
        for group, own in zip(given["group"], members, strict=True)
        if (rule := group.get("spoils")) is not None
        for move in own
    }
    return Net(tuple(gains), after, spoils, exclusive)


@dataclass(frozen=True, slots=True)
class Net:
    """Optimisations with individual gains; some require another one, some spoil others."""

    gains: tuple[float, ...]
    after: Mapping[int, int]
    """Optimisation → the one that it requires."""
    spoils: Mapping[int, frozenset[int]]
    """Optimisation → those that it makes nearly worthless."""
    exclusive: Mapping[int, int]
    """Optimisation → its group; a kernel can contain only one of a group."""

    def open(self, moves: frozenset[int]) -> Sequence[int]:
        groups = {self.exclusive[m] for m in moves if m in self.exclusive}
        return [
            m
            for m in range(len(self.gains))
            if m not in moves and self.after.get(m, m) in (*moves, m) and self.exclusive.get(m) not in groups
        ]

    def structure(self, moves: frozenset[int]) -> float:
        spoilt: set[int] = set()
        for move in moves:
            spoilt |= self.spoils.get(move, frozenset())
        needed = {m for m in moves if self.after.get(m, m) in moves}
        return sum(self.gains[m] * (0.05 if m in spoilt else 1.0) for m in sorted(needed))


@dataclass(frozen=True, slots=True)
class Rugged:
    """An NK landscape: each optimisation's gain depends on the presence of ``neighbours`` others."""

    seed: str
    size: int
    neighbours: int
    scale: float

    def open(self, moves: frozenset[int]) -> Sequence[int]:
        return [m for m in range(self.size) if m not in moves]

    def structure(self, moves: frozenset[int]) -> float:
        return self.scale * (self._fitness(moves) - self._fitness(frozenset()))

    def _fitness(self, moves: frozenset[int]) -> float:
        total = 0.0
        for place in range(self.size):
            around = "".join("01"[(place + n) % self.size in moves] for n in range(self.neighbours + 1))
            total += _contribution(self.seed, place, around)
        return total / self.size


@functools.lru_cache(maxsize=1 << 16)
def _contribution(seed: str, place: int, around: str) -> float:
    return random.Random(f"{seed}:{place}:{around}").random()


@dataclass(frozen=True, slots=True)
class Forks:
    """A tree of irreversible decisions: the gain of each option depends on all earlier ones."""

    seed: str
    levels: int
    width: int
    spread: float

    def open(self, moves: frozenset[int]) -> Sequence[int]:
        level = len(moves)
        return range(level * self.width, (level + 1) * self.width) if level < self.levels else ()

    def structure(self, moves: frozenset[int]) -> float:
        path = sorted(moves)
        return sum(self._gain("/".join(map(str, path[: n + 1]))) for n in range(len(path)))

    def _gain(self, path: str) -> float:
        return self.spread * random.Random(f"{self.seed}:{path}").gauss(0, 1)


@dataclass(frozen=True, slots=True)
class Code:
    """The optimisations and the polish that a kernel's code encodes."""

    moves: frozenset[int]
    polish: float

    def speed(self, landscape: Landscape) -> float:
        """Logarithm of the true speedup over the naive port."""
        return landscape.structure(self.moves) + self.polish


def code_of(source: str) -> Code:
    """Decode a source text written by ``Walker``."""
    fields = json.loads(source.splitlines()[0].removeprefix("// "))
    return Code(frozenset(fields["moves"]), fields["polish"])


@dataclass(slots=True)
class Walker:
    """A proposer and writer on a landscape: short-sighted, sometimes wrong, the same for every strategy.

    Its answers depend on the seed, the parent's code and its earlier proposals for that parent, so two strategies at the same
    kernel receive the same ideas.
    """

    landscape: Landscape
    world: World
    seed: str
    calls: int = 0
    """Calls that a model would charge for: one per round, one per implementation."""
    drafts: int = 0
    _structures: dict[frozenset[int], float] = field(default_factory=dict)

    @property
    def author(self) -> Author:
        return AUTHOR

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[w.Proposal, ...]:
        self.calls += 1
        if request.round == 0:
            return (w.Proposal(IdeaText("Naive port", CATEGORIES[0], "The root of the tree.", None, "root"), None, AUTHOR),)
        proposals: list[w.Proposal] = []
        for number in range(request.count):
            parent = request.parents[number % len(request.parents)]
            before = [i.text.key for i in request.state.ideas.values() if i.parent == parent]
            before += [p.text.key for p in proposals if p.parent == parent]
            proposals.append(w.Proposal(self._idea(request.code[parent], before), parent, AUTHOR))
        return tuple(proposals)

    def _idea(self, source: str, before: Sequence[str]) -> IdeaText:
        """The idea with the best predicted gain; each repetition lowers its prediction."""
        code = code_of(source)
        dice = random.Random(f"{self.seed}:idea:{source}:{len(before)}")
        tried = [key.partition("#")[0] for key in before]
        options = self._options(code)
        looks = {}
        for option in options:
            foreseen = self.speed(self._after(code, option)) - self.speed(code)
            looks[option] = self.world.sight * foreseen + dice.gauss(0, self.world.foresight) - 0.3 * tried.count(option)
        best = max(options, key=lambda option: looks[option])
        title = f"{best} try {tried.count(best) + 1}"
        return IdeaText(title, CATEGORIES[0], "The best predicted gain.", math.exp(looks[best]), f"{best}#{tried.count(best)}")

    def _options(self, code: Code) -> list[str]:
        """What can be done to a kernel: add an optimisation, remove one, polish."""
        removable = sorted(code.moves) if self.world.undo else []
        return [*(f"+{m}" for m in self.landscape.open(code.moves)), *(f"-{m}" for m in removable), POLISH]

    def speed(self, code: Code) -> float:
        """Logarithm of the true speedup over the naive port."""
        if code.moves not in self._structures:
            self._structures[code.moves] = self.landscape.structure(code.moves)
        return self._structures[code.moves] + code.polish

    def _after(self, code: Code, option: str) -> Code:
        """The code after a typical implementation of the idea."""
        usual = 0.5 * code.polish - 0.8 * self.world.sloppiness
        if option == POLISH:
            return Code(code.moves, usual)
        move = frozenset((int(option[1:]),))
        return Code(code.moves | move if option[0] == "+" else code.moves - move, usual)

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        self.calls += request.idea.branch
        if request.parent_code is None:
            return Implementation((self._draft(Code(frozenset(), 0.0), "root", ""),))
        parent, key = code_of(request.parent_code), request.idea.text.key
        drafts: list[Draft] = []
        for number in range(request.idea.branch):
            dice = random.Random(f"{self.seed}:code:{request.parent_code}:{key}:{number}")
            option = key.partition("#")[0]
            usual_code = self._after(parent, option)
            self.drafts += 1
            loss = abs(dice.gauss(0, self.world.sloppiness))
            kind = dice.choice(("build_failed", "mismatch", "crashed")) if dice.random() < self._failures() else ""
            if option not in self._options(parent):  # an idea from another kernel that does not fit this one
                kind = "mismatch"
            drafts.append(self._draft(Code(usual_code.moves, 0.5 * parent.polish - loss), f"{key}.{number}", kind))
        return Implementation(tuple(drafts))

    def _draft(self, code: Code, name: str, failure: str) -> Draft:
        fields = json.dumps({"moves": sorted(code.moves), "polish": code.polish, "name": name})
        time_us = BASELINE_US * math.exp(-self.speed(code))
        mark = failure or f"time_us = {time_us:.9f}"
        text = f'// {fields}\n// FAKE: {mark}\nextern "C" void launch(const float* x, float* out, void* workspace) {{}}\n'
        return Draft(text, Dialect.CPP, Contract.HOST, f"{name}.cpp")

    def _failures(self) -> float:
        """The share of drafts that fail now."""
        begin, end = self.world.failures, self.world.failures_at_end
        return begin if end is None else begin + (end - begin) * min(1.0, self.drafts / self.world.drift)

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        return None

    async def close(self) -> None:
        """Nothing to release."""


class NoisyBench(FakeBench):
    """A ``FakeBench`` whose every measurement errs by its own draw, with intervals as wide as the error deserves."""

    def __init__(self, store: Callable[[bytes], Blob], noise: float, seed: str) -> None:
        super().__init__(store)
        self._noise, self._seed = noise, seed

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Failed | w.Impossible:
        result = await super().verify(kernel, code, say)
        if isinstance(result, w.Verified):
            return replace(result, screen=self._erring(kernel, result.screen, "screen"))
        return result

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        result = await super().measure(kernel, code, say)
        if isinstance(result, w.Measured):
            return replace(result, measurement=self._erring(kernel, result.measurement, "precise"))
        return result

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        """Both arms are measured again; each step of effort halves the error."""
        result = await super().race(kernel, code, other, other_code, effort, regime, say)
        if not isinstance(result, w.Raced):
            return result
        noise = math.hypot(self.deviation(kernel), self.deviation(other)) / 2**effort
        error = noise * random.Random(f"{self._seed}:{kernel.id}:{other.id}:{effort}").gauss(0, 1)
        return replace(result, ratio=_interval(result.ratio.value * math.exp(error), noise))

    def deviation(self, kernel: Kernel) -> float:
        """The standard deviation of a measurement of the kernel, in logarithms."""
        return self._noise

    def _erring(self, kernel: Kernel, measured: Measurement, depth: str) -> Measurement:
        noise, dice = self.deviation(kernel), random.Random(f"{self._seed}:{kernel.id}:{kernel.again}:{depth}")
        factor = math.exp(noise * dice.gauss(0, 1))
        speedup = {name: _interval(ratio.value / factor, noise) for name, ratio in measured.speedup.items()}
        return replace(measured, time_us=_interval(measured.time_us.value * factor, noise), speedup=speedup)


def _interval(value: float, deviation: float) -> Interval:
    return Interval(value, value * math.exp(-1.96 * deviation), value * math.exp(1.96 * deviation))


class MemoryBlobs(Blobs):
    """Payloads kept in memory."""

    def __init__(self) -> None:
        super().__init__(Path("simulated"))
        self._kept: dict[Blob, bytes] = {}

    def put(self, payload: bytes) -> Blob:
        name = hashlib.sha256(payload).hexdigest()
        self._kept[name] = payload
        return name

    def get(self, name: Blob) -> bytes:
        if name not in self._kept:
            raise JournalCorrupt(f"blob {name} is missing")
        return self._kept[name]


class _NoCalls:
    """Fails on any model call."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a simulated proposer used calls.{name}")


Affordable = Callable[[SessionState, w.Work], bool]
"""Whether the budget pays for a work item that asks a model."""


async def search(
    opened: e.SessionOpened, bench: Bench, ideas: Proposer, blobs: Blobs, affordable: Affordable = lambda state, work: True
) -> SessionState:
    """Run a whole search in memory, one work item at a time: the rules decide, ``perform`` acts, nothing is written.

    Ends when nothing is owed, or nothing that is affordable.

    Raises RuntimeError if a work item fails, which is a bug of the simulation.
    """
    effects = Effects(bench, ideas, blobs)
    calls: Calls = _NoCalls()  # type: ignore[assignment]
    state = advance(SessionState(), [e.Entry(0, 0.0, ENGINE, opened)])
    while True:
        while events := rules.automatic(state):
            state = _advanced(state, events)
        work = next((one for one in rules.next_work(state) if not _paid(one) or affordable(state, one)), None)
        if work is None:
            return state
        result = await perform(work, state, effects, calls, lambda _: None)
        if isinstance(result, w.Impossible):
            raise RuntimeError(f"{work.key}: {result.reason}")
        state = _advanced(state, rules.record(state, work, result))


def _paid(work: w.Work) -> bool:
    return isinstance(work, w.Propose | w.Implement)


def _advanced(state: SessionState, events: Sequence[e.Event]) -> SessionState:
    return advance(state, [e.Entry(state.seq + 1 + n, float(state.seq), ENGINE, event) for n, event in enumerate(events)])
