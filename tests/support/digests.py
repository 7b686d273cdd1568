"""A digest of a folded state, independent of class names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from engine.domain.settings import CONCURRENCY, PATIENCE, PROFILING, ModelSettings
from engine.domain.state import SessionState

_ADDED: Mapping[str, object] = {
    "doubts": (), "bounds": {}, "caveats": (), "chance": "", "models": ModelSettings(), "servers": (), "options": {},
    "patience": PATIENCE, "concurrency": CONCURRENCY, "profiling": PROFILING, "max_output": 0, "estimated": False, "why": "",
    "mismatches": (), "dialect": "", "plan": None, "repeats": "", "advice": "", "prior": (),
    "suites": {}, "suite": "", "by_workload": (), "members": (), "signature": None,
    "attachments": {}, "origin_format": None, "format_verdict": None, "features": (), "core_caches": (), "failures": (),
    "vector_operations": 0.0, "decisions": (), "worker": "", "workers": {}, "choices": (), "tuning": None, "tunings": (),
    "regime": "", "clock": None, "sustained": None, "back_to_back": False, "unsustained": "", "hot": None, "failed_on": None,
    "raised_later": False, "reopened_after": -1,
}  # fmt: skip
"""Field → its default."""


def state_digest(state: SessionState) -> str:
    """SHA-256 over the state as JSON: keys are sorted, and class names do not occur."""
    return hashlib.sha256(json.dumps(_canonical(state), sort_keys=True).encode()).hexdigest()


def _canonical(value: object) -> object:
    """Plain data. A class with its own encoding, or with a single field, becomes that value.

    Fields added since the digests were recorded count only where they differ from their default: an old journal has none.
    """
    if is_dataclass(value) and not isinstance(value, type):
        if type(value).__str__ is not object.__str__:
            return str(value)
        present = ((field.name, getattr(value, field.name)) for field in fields(value))
        known = {name: _canonical(item) for name, item in present if name not in _ADDED or item != _ADDED[name]}
        return next(iter(known.values())) if len(known) == 1 else known
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_canonical(item) for item in value]
    return value
