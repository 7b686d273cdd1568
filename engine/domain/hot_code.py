"""The code of a kernel in which it spends its time: samples of the program counter by source line, or its loops. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine.domain.model import Blob

HOTTEST = 8
"""Source lines that are recorded."""
LOOPS = 3
"""Loops that are recorded."""
_SHOWN = 3
SKID = "a sample names the instruction after the one that waited"
"""A signal arrives once the interrupted instruction is done, and waiting shows where its result is needed."""


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of a kernel's code, and the samples in the instructions that came from it."""

    line: int
    text: str
    samples: int


@dataclass(frozen=True, slots=True)
class HotLoop:
    """An innermost loop of the machine code. It says what runs often, not what takes long."""

    function: str
    depth: int
    first: int
    """The first and the last source line of its instructions; 0 if the compiler gave none."""
    last: int
    instructions: int
    mix: Mapping[str, int] = field(default_factory=dict)
    """Instruction family → count, as in ``engine.domain.instruction_mix``."""

    @property
    def words(self) -> str:
        """``loop depth 2 (static) of softmax, lines 10–11: 12 instructions, MUFU 1, LDG 1``."""
        lines = f", line{'s' if self.last > self.first else ''} {self.first}" if self.first else ""
        upto = f"–{self.last}" if self.last > self.first else ""
        families = "".join(f", {name} {count}" for name, count in sorted(self.mix.items(), key=lambda item: -item[1]))
        return f"loop depth {self.depth} (static) of {self.function}{lines}{upto}: {self.instructions} instructions{families}"


@dataclass(frozen=True, slots=True)
class NoHotCode:
    """Why the hot code of a kernel is not known."""

    reason: str


@dataclass(frozen=True, slots=True)
class HotCode:
    """Where the threads of a kernel were, at fixed intervals during its calls; its loops where that was not sampled."""

    samples: int = 0
    """Those of all threads that ran the kernel's code, outside it too."""
    lines: tuple[HotLine, ...] = ()
    """The hottest first, at most ``HOTTEST``."""
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    """Library → samples in it: a mathematical function, or a thread that waits for others."""
    listing: Blob = ""
    """The machine code with the samples and the loops of each instruction, as JSON."""
    loops: tuple[HotLoop, ...] = ()
    """The deepest first, at most ``LOOPS``; only where nothing was sampled."""


def share(part: int, whole: int) -> float:
    """Of samples, from 0 to 1 whatever the numbers: a journal from elsewhere can hold any."""
    return 0.0 if part <= 0 or whole <= 0 else 1.0 if part >= whole else part / whole


def share_words(found: float) -> str:
    """A share in per cent, with a digit below ten; empty for none."""
    percent = 100 * found
    return f"{percent:.0f}%" if percent >= 9.95 else f"{percent:.1f}%" if percent else ""


@dataclass(frozen=True, slots=True)
class HotRow:
    """A source line or a library with its share of the samples."""

    place: str
    text: str
    share: float

    @property
    def words(self) -> str:
        return share_words(self.share)


def rows(hot: HotCode) -> Iterator[HotRow]:
    """Lines and libraries together, the hottest first."""
    found = [HotRow(f"line {one.line}", one.text, share(one.samples, hot.samples)) for one in hot.lines if hot.samples]
    found += [HotRow(name, "", share(count, hot.samples)) for name, count in hot.elsewhere.items() if hot.samples]
    yield from sorted(found, key=lambda row: -row.share)


def summary(hot: HotCode) -> str:
    """The hottest places, or the deepest loops, on one line, for a log or a prompt; empty if there are no loops."""
    if not hot.samples:
        return "; ".join(loop.words for loop in hot.loops)
    places = [f"{row.place} {f'`{row.text}` ' if row.text else ''}{row.words}" for row in rows(hot)][:_SHOWN]
    return f"{', '.join(places)} of {hot.samples:,} samples of the program counter"
