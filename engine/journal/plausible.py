"""Checks that an entry holds what a clock and a measurement can give: a damaged or edited figure is not shown as a result.

Zero and infinity are no faults: the judge writes them for times that a runner claims beyond all bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from engine.domain import events as e
from engine.domain.figures import Interval, SpeedOfLight

_DAY_S = 86_400.0
_ROUNDED = 1.0 + 1e-9
"""Bounds that are computed apart from their value may differ from it in the last places."""
_FIRST, _LAST = -62_135_596_800.0 + _DAY_S, 253_402_300_800.0 - _DAY_S
"""Times of the years 1 to 9999, a day from either end: in any time zone they have a date."""


def fault(entry: e.Entry) -> str:
    """What in the entry nothing can have given, as a predicate; empty if nothing."""
    if not _FIRST <= entry.at <= _LAST:
        return "has a time outside the years 1 to 9999"
    return _fault(entry.event)


def _fault(value: Any) -> str:
    """That of the first interval or share of SOL, at any depth, that is not sound."""
    if isinstance(value, Interval):
        if 0.0 <= value.low <= value.value * _ROUNDED and value.value <= value.high * _ROUNDED:
            return ""
        return f"has an interval that no measurement gives ({value.value:g} in [{value.low:g}, {value.high:g}])"
    if isinstance(value, SpeedOfLight):
        if value.floor_us >= 0.0 and value.fraction >= 0.0:
            return ""
        return f"has a share of SOL that no measurement gives ({value.fraction:g}, of {value.floor_us:g} µs)"
    if isinstance(value, tuple):
        return next(filter(None, map(_fault, value)), "")
    if isinstance(value, Mapping):
        return next(filter(None, map(_fault, value.values())), "")
    return next(filter(None, [_fault(getattr(value, name)) for name in _parts(value.__class__)]), "")


@cache
def _parts(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that may hold such figures; none of another type."""
    if not is_dataclass(kind):
        return ()
    hints = get_type_hints(kind)
    return tuple(field.name for field in fields(kind) if _may_hold(hints[field.name]))


@cache
def _may_hold(hint: Any) -> bool:
    """Whether a value of this type may be or contain such a figure."""
    if hint in (Interval, SpeedOfLight) or (isinstance(hint, type) and _parts(hint)):
        return True
    return any(map(_may_hold, get_args(hint)))
