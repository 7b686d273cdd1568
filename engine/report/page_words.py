"""Words and figures that both forms of the report share. Pure."""

from __future__ import annotations

from engine.report.page import Promise
from engine.report.text import digits

GAINS = (
    "A gain over the parent is a quotient of two measurements against the same baseline; `espalier ablate` measures each step "
    "of the winning lineage directly."
)
CLIMB = (
    "Each dot is a kernel, filled where it was measured precisely, hollow where it was only screened; a cross is one that "
    "failed. The stairs follow the best kernel, ranked by the lower end of its interval."
)
ROOFLINE = (
    "Ceilings as measured on this device. Every kernel does the reference's operations on at least its bytes, so all stand at "
    "one intensity."
)


def clock(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def factor(value: float) -> str:
    """A ratio without an interval."""
    return f"{digits(value)}×"


PROMISES = ("author", "scored", "off by", "promised ÷ measured", "right direction", "fruitless")


def promise(found: Promise) -> tuple[str, ...]:
    """The cells under ``PROMISES``."""
    if not found.scored:
        return (found.author, "0", "–", "–", "–", str(found.fruitless))
    hits = f"{found.hits} of {found.scored}"
    return (found.author, str(found.scored), factor(found.off), factor(found.bias), hits, str(found.fruitless))
