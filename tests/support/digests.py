"""A digest of a folded state, independent of class names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from engine.domain.state import SessionState


def state_digest(state: SessionState) -> str:
    """SHA-256 over the state as JSON: keys are sorted, and class names do not occur."""
    return hashlib.sha256(json.dumps(_canonical(state), sort_keys=True).encode()).hexdigest()


def _canonical(value: object) -> object:
    """Plain data. A class with its own encoding, or with a single field, becomes that value."""
    if is_dataclass(value) and not isinstance(value, type):
        if type(value).__str__ is not object.__str__:
            return str(value)
        known = {field.name: _canonical(getattr(value, field.name)) for field in fields(value)}
        return next(iter(known.values())) if len(known) == 1 else known
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_canonical(item) for item in value]
    return value
