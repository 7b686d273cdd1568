"""The code of a kernel in which it spends its time: samples of the program counter, by source line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine.domain.model import Blob

HOTTEST = 8
"""Source lines that are recorded."""
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
class HotCode:
    """Where the threads of a kernel were, at fixed intervals during its calls."""

    samples: int
    """Those of all threads that ran the kernel's code, outside it too."""
    lines: tuple[HotLine, ...] = ()
    """The hottest first, at most ``HOTTEST``."""
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    """Library → samples in it: a mathematical function, or a thread that waits for others."""
    listing: Blob = ""
    """The machine code with the samples of each instruction, as JSON."""


def share_words(part: float, whole: float) -> str:
    """A share in per cent, with a digit below ten; empty for none."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %" if percent else ""


@dataclass(frozen=True, slots=True)
class HotRow:
    """A source line or a library with its share of the samples."""

    place: str
    text: str
    share: float

    @property
    def words(self) -> str:
        return share_words(self.share, 1)


def rows(hot: HotCode) -> Iterator[HotRow]:
    """Lines and libraries together, the hottest first."""
    found = [HotRow(f"line {one.line}", one.text, one.samples / hot.samples) for one in hot.lines if hot.samples]
    found += [HotRow(name, "", count / hot.samples) for name, count in hot.elsewhere.items() if hot.samples]
    yield from sorted(found, key=lambda row: -row.share)


def summary(hot: HotCode) -> str:
    """The hottest places on one line, for a log or a prompt."""
    places = [f"{row.place} {f'`{row.text}` ' if row.text else ''}{row.words}" for row in rows(hot)][:_SHOWN]
    return f"{', '.join(places)} of {hot.samples:,} samples of the program counter"
