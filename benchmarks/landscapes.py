"""Searches without a model or a device: landscapes of optimisations, a proposer that walks on them, and a fast driver.

The simulated part is the world: which optimisations exist, what they gain together, how well a writer implements an idea, how
often it fails, and how badly its author predicts the gain. The search is *not* simulated. Rounds, parents, duplicates, ranking,
incumbents and limits are ``engine.domain.rules`` and ``engine.domain.queries``; effects go through ``engine.session.perform``.
``tests/report`` shows that a ``LiveSession`` with the same ports grows the same tree.

A kernel's true speed is exp(structure(moves) + polish): ``moves`` are the optimisations that it contains, ``polish`` (≤ 0) is
the speed that its writer lost. A writer inherits half of the parent's polish and adds its own loss.
"""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.domain import events as e
from engine.domain import rules
from engine.domain import work as w
from engine.domain.errors import JournalCorrupt
from engine.domain.model import CATEGORIES, ENGINE, Author, Blob, Contract, Dialect, Draft, IdeaText
from engine.domain.state import SessionState, advance
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, RepairRequest
from engine.journal.blobs import Blobs
from engine.session.perform import Effects, perform
from engine.session.ports import Bench

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
        removable = sorted(code.moves) if self.world.undo else []
        options = [*(f"+{m}" for m in self.landscape.open(code.moves)), *(f"-{m}" for m in removable), POLISH]
        looks = {}
        for option in options:
            foreseen = self._after(code, option).speed(self.landscape) - code.speed(self.landscape)
            looks[option] = foreseen + dice.gauss(0, self.world.foresight) - 0.3 * tried.count(option)
        best = max(options, key=lambda option: looks[option])
        title = f"{best} try {tried.count(best) + 1}"
        return IdeaText(title, CATEGORIES[0], "The best predicted gain.", math.exp(looks[best]), f"{best}#{tried.count(best)}")

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
            usual_code = self._after(parent, key.partition("#")[0])
            loss = abs(dice.gauss(0, self.world.sloppiness))
            kind = dice.choice(("build_failed", "mismatch", "crashed")) if dice.random() < self.world.failures else ""
            drafts.append(self._draft(Code(usual_code.moves, 0.5 * parent.polish - loss), f"{key}.{number}", kind))
        return Implementation(tuple(drafts))

    def _draft(self, code: Code, name: str, failure: str) -> Draft:
        fields = json.dumps({"moves": sorted(code.moves), "polish": code.polish, "name": name})
        dice = random.Random(f"{self.seed}:time:{fields}")
        time_us = BASELINE_US * math.exp(dice.gauss(0, self.world.noise) - code.speed(self.landscape))
        mark = failure or f"time_us = {time_us:.9f}"
        text = f'// {fields}\n// FAKE: {mark}\nextern "C" void launch(const float* x, float* out, void* workspace) {{}}\n'
        return Draft(text, Dialect.CPP, Contract.HOST, f"{name}.cpp")

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        return None

    async def close(self) -> None:
        """Nothing to release."""


class MemoryBlobs(Blobs):
    """Payloads kept in memory."""

    def __init__(self) -> None:
        self._kept: dict[Blob, bytes] = {}

    def put(self, payload: bytes) -> Blob:
        name = f"{len(self._kept):064x}"
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


async def search(opened: e.SessionOpened, bench: Bench, ideas: Walker, blobs: Blobs) -> SessionState:
    """Run a whole search in memory, one work item at a time: the rules decide, ``perform`` acts, nothing is written.

    Raises RuntimeError if a work item fails, which is a bug of the simulation.
    """
    effects = Effects(bench, ideas, blobs)
    calls: Calls = _NoCalls()  # type: ignore[assignment]
    state = advance(SessionState(), [e.Entry(0, 0.0, ENGINE, opened)])
    while True:
        while events := rules.automatic(state):
            state = _advanced(state, events)
        owed = rules.next_work(state)
        if not owed:
            return state
        result = await perform(owed[0], state, effects, calls, lambda _: None)
        if isinstance(result, w.Impossible):
            raise RuntimeError(f"{owed[0].key}: {result.reason}")
        state = _advanced(state, rules.record(state, owed[0], result))


def _advanced(state: SessionState, events: Sequence[e.Event]) -> SessionState:
    return advance(state, [e.Entry(state.seq + 1 + n, float(state.seq), ENGINE, event) for n, event in enumerate(events)])
