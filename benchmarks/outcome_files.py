"""Recorded outcomes of playbook kernels: a JSON-lines file for each problem, which first names what was recorded where.

``playbook_outcomes`` writes these files, ``playbooks`` searches over them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.domain.model import Interval

FOLDER = Path(__file__).parent / "outcomes"

OutcomeKey = tuple[str, tuple[tuple[str, int], ...]]
"""What names a kernel of a playbook: its file, and the values of its tunables."""


def outcome_key(kernel: str, values: Mapping[str, int]) -> OutcomeKey:
    """The key of a kernel file with these values of its tunables."""
    return kernel, tuple(sorted(values.items()))


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file's outcomes were measured on."""

    problem: str
    workload: str
    device: str
    cores: int
    """Of each worker."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the judge found of one kernel."""

    kernel: str
    values: Mapping[str, int]
    speedup: Interval | None
    """Over eager PyTorch; ``None`` of a kernel that failed."""
    failure: str = ""
    """A ``FailureKind``, or ``suspicious``."""
    machine_code: str = ""

    @property
    def key(self) -> OutcomeKey:
        return outcome_key(self.kernel, self.values)


def read(file: Path) -> tuple[Recorded, tuple[Outcome, ...]]:
    """A file's outcomes. Raises OSError, and ValueError for what is no such file."""
    head, *lines = file.read_text(encoding="utf-8").splitlines() or ["null"]
    match json.loads(head):
        case {"problem": str(), "workload": str(), "device": str(), "cores": int()} as found if len(found) == 4:
            return Recorded(**found), tuple(_outcome(json.loads(line)) for line in lines)
    raise ValueError(f"{file}: its first line names no problem, workload, device and cores")


def _outcome(line: Mapping[str, object]) -> Outcome:
    match line:
        case {"kernel": str(name), "values": dict(values), "speedup": [value, low, high], "machine_code": str(code)}:
            return Outcome(name, values, Interval(value, low, high), machine_code=code)
        case {"kernel": str(name), "values": dict(values), "failure": str(failure)}:
            return Outcome(name, values, None, failure)
    raise ValueError(f"not an outcome: {line}")


def head_line(recorded: Recorded) -> str:
    """The first line of a file."""
    return json.dumps(asdict(recorded))


def outcome_line(outcome: Outcome) -> str:
    """A further line."""
    line: dict[str, object] = {"kernel": outcome.kernel, "values": dict(outcome.values)}
    if outcome.speedup is None:
        return json.dumps(line | {"failure": outcome.failure})
    ratio = [float(f"{x:.6g}") for x in (outcome.speedup.value, outcome.speedup.low, outcome.speedup.high)]
    return json.dumps(line | {"speedup": ratio, "machine_code": outcome.machine_code})
