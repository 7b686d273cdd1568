"""The kinds of work, and the keys that identify work items in the journal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WorkKind(StrEnum):
    """The kinds of work, as the journal spells them."""

    PREPARE = "prepare"
    PROPOSE = "propose"
    IMPLEMENT = "implement"
    BUILD = "build"
    VERIFY = "verify"
    MEASURE = "measure"
    REPAIR = "repair"
    SANITIZE = "sanitize"
    SUSTAIN = "sustain"
    RACE = "race"
    PROFILE = "profile"
    TUNE = "tune"


@dataclass(frozen=True, slots=True)
class WorkKey:
    """Identifies a work item; written as ``implement:i2``, ``build:k1:0`` or ``race:k2:k1:0``."""

    kind: str
    """A ``WorkKind``, or an unknown kind of a newer program."""
    subjects: tuple[str, ...] = ()
    """The idea or the kernels that it concerns."""
    number: int | None = None
    """The round of a proposal, the attempt at a kernel, the effort of a race."""

    @classmethod
    def parse(cls, text: str) -> WorkKey:
        """Parse the journal's text form. Total: every text is a key of some kind."""
        kind, *rest = text.split(":")
        if rest and rest[-1].isdecimal() and len(rest[-1]) < 10:
            return cls(kind, tuple(rest[:-1]), int(rest[-1]))
        return cls(kind, tuple(rest))

    def __str__(self) -> str:
        return ":".join((self.kind, *self.subjects, *(() if self.number is None else (str(self.number),))))

    @property
    def subject(self) -> str:
        """The first subject: an idea, a kernel, or the number of a round; empty for the preparation."""
        return self.subjects[0] if self.subjects else "" if self.number is None else str(self.number)
