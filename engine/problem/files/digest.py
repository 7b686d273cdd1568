"""The digest of a problem's content. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from engine.domain.model import Number, Problem, Workload


def content_digest(
    text: str,
    workloads: tuple[Workload, ...],
    holdouts: Mapping[str, tuple[Workload, ...]],
    bounds: Mapping[str, Mapping[str, Sequence[Number]]],
    attachments: Mapping[str, str],
    suites: Mapping[str, Sequence[str]],
) -> str:
    """SHA-256 of a reference with its workloads, hold-out shapes, bounds, attachments and suites."""
    rest: dict[str, object] = {
        "workloads": [[w.name, dict(w.settings)] for w in workloads],
        "holdouts": {name: [dict(h.settings) for h in hs] for name, hs in holdouts.items()},
    }
    if bounds:
        rest["bounds"] = {name: {setting: list(limits) for setting, limits in one.items()} for name, one in bounds.items()}
    if attachments:
        rest["attachments"] = dict(attachments)
    if suites:
        rest["suites"] = {name: list(names) for name, names in suites.items()}
    canonical = json.dumps([text, rest], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def problem_digest(problem: Problem) -> str:
    """``content_digest`` of a problem as it is."""
    return content_digest(
        problem.reference, problem.workloads, problem.holdouts, problem.bounds, problem.attachments, problem.suites
    )
