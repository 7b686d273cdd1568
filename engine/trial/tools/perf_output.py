"""Parses the output of ``perf stat -x,`` into counts by event, or the reason why there are none. Pure.

A line is ``value,unit,event,time counted,per cent of the time[,…]``; later columns differ between versions and are not read.
Event names come back as requested or decorated: ``instructions:u`` if only user-mode code may be counted,
``cpu_core/instructions/`` and ``cpu_atom/instructions/`` on a processor with two kinds of core, which are added up here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.trial.messages import COUNTED_CALLS

CLOCK = "task-clock"
METRICS: Mapping[str, str] = {
    CLOCK: "cpu_us",
    "instructions": "instructions",
    "cycles": "cycles",
    "branches": "branches",
    "branch-misses": "branch_misses",
    "cache-references": "cache_references",
    "cache-misses": "cache_misses",
    "L1-dcache-load-misses": "l1_misses",
    "LLC-load-misses": "llc_misses",
}
"""perf's event → the metric's name in ``engine.domain.profile``."""
PASSES: Sequence[Sequence[str]] = (
    (CLOCK, "instructions", "cycles", "branches", "branch-misses"),
    ("cache-references", "cache-misses", "L1-dcache-load-misses", "LLC-load-misses"),
)
"""Events that are counted together: at most four hardware events, for which every processor has counters at once. More would be
multiplexed at the rate of the timer tick, and in a call shorter than a tick some would not be counted."""

_CALLS = re.compile(rf"^{re.escape(COUNTED_CALLS)}(\d{{1,9}})$", re.MULTILINE)
_TIMES = {"nsec": 1e-3, "usec": 1.0, "msec": 1e3, "sec": 1e6}
_UNREAD = re.compile(r"<(not supported|not counted)>")
_PARANOID = re.compile(r"perf_event_paranoid setting is\s+(-?\d+)")
_STRICT = 2
"""The setting above which Linux lets only administrators count."""
_REASONS: Sequence[tuple[str, str]] = (
    ("perf not found for kernel", "perf is not installed for this kernel (on Ubuntu: apt install linux-tools-$(uname -r))"),
    ("unknown option `control", "this perf does not support --control: version 5.10 or newer is needed"),
    ("Function not implemented", "this system's kernel has no perf_event_open (gVisor?): profile outside this container"),
)
_REFUSED = re.compile(
    r"Access to performance monitoring|may not have permission to collect"
    r"|perf_event_open.*\((?:Operation not permitted|Permission denied)\)"
)


@dataclass(frozen=True, slots=True)
class Counted:
    """``values`` by event, times in microseconds; ``missing``: event → perf's reason why it has no value."""

    values: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


def parse_perf(output: str) -> Counted:
    """The counts of the events of ``METRICS``; other lines are skipped."""
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    for line in output.splitlines():
        columns = line.strip().split(",")
        event = _event(columns[2]) if len(columns) > 2 else ""
        if event not in METRICS:
            continue
        if unread := _UNREAD.fullmatch(columns[0].strip()):
            missing.setdefault(event, unread[1])
        elif (value := _number(columns[0], columns[1].strip(), event)) is not None:
            values[event] = values.get(event, 0.0) + value
    return Counted(values, {event: why for event, why in missing.items() if event not in values})


def calls_in(output: str) -> int:
    """The number of calls that the counted program reports; 0 if it did not finish."""
    announced = _CALLS.findall(output)
    return int(announced[-1]) if announced else 0


def why_not(output: str) -> str:
    """Why perf counted nothing, and what to do, one line."""
    for sign, words in _REASONS:
        if sign in output:
            return words
    if _REFUSED.search(output):
        return _refused(_PARANOID.search(output))
    lines = [line.strip() for line in output.splitlines() if line.strip() and line.strip() != "Error:"]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[0][:200]


def _refused(setting: re.Match[str] | None) -> str:
    if setting is not None and int(setting[1]) <= _STRICT:
        return (
            f"perf_event_open is forbidden although kernel.perf_event_paranoid is {setting[1]}: a container's seccomp filter? "
            "Run the container with --cap-add PERFMON, or profile outside it"
        )
    now = f" is {setting[1]}" if setting is not None else ""
    return (
        f"only administrators may read this machine's counters (kernel.perf_event_paranoid{now}): "
        f"as root, run sysctl kernel.perf_event_paranoid={_STRICT}"
    )


def _event(text: str) -> str:
    """The event's plain name: without kind of core and modifiers."""
    core, slash, rest = text.strip().partition("/")
    name = rest.partition("/")[0] if slash else core
    return name.partition(":")[0]


def _number(text: str, unit: str, event: str) -> float | None:
    """A count, or a time in microseconds; ``None`` for anything else."""
    factor = _TIMES.get(unit) if event == CLOCK else 1.0
    try:
        value = float(text)
    except ValueError:
        return None
    return value * factor if factor is not None and math.isfinite(value) and value >= 0 else None
