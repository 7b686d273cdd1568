"""Checks that an entry holds what a clock and a measurement can give: a damaged or edited figure is not shown as a result.

Zero and infinity are no faults: the judge writes them for times that a runner claims beyond all bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from engine.domain import events as e
from engine.domain.figures import Interval

_MEASURED = (
    e.SessionPrepared,
    e.WorkerPrepared,
    e.KernelVerified,
    e.KernelMeasured,
    e.KernelQuarantined,
    e.KernelTuned,
    e.KernelRaced,
)
"""The events with intervals."""
_DAY_S = 86_400.0
_FIRST, _LAST = -62_135_596_800.0 + _DAY_S, 253_402_300_800.0 - _DAY_S
"""Times of the years 1 to 9999, a day from either end: in any time zone they have a date."""


def fault(entry: e.Entry) -> str:
    """What in the entry nothing can have given, as a predicate; empty if nothing."""
    if not _FIRST <= entry.at <= _LAST:
        return "has a time outside the years 1 to 9999"
    if not isinstance(entry.event, _MEASURED):
        return ""
    wrong = next((one for one in _intervals(entry.event) if not 0.0 <= one.low <= one.value <= one.high), None)
    return (
        ""
        if wrong is None
        else f"has an interval that no measurement gives ({wrong.value:g} in [{wrong.low:g}, {wrong.high:g}])"
    )


def _intervals(value: object) -> Iterator[Interval]:
    if isinstance(value, Interval):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _intervals(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _intervals(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _intervals(item)
