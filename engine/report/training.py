"""Sessions as training data: JSON Lines in three shapes, each with one schema for all its rows. Recordings in, rows out.

``jsonl``: every attempt at every kernel, failures included: prompt, idea, code, verdict, reward, device, licence.
``sft``: chats (``messages``) that ended in a verified and measured kernel; a reply that gave several kernels is there once.
``pairs``: two answers to the same idea on the same parent (``prompt``, ``chosen``, ``rejected``), the first verified and either
shown to be faster (the 95 % intervals do not meet) or the second one failed.

What a reward is: ``engine.report.rewards``. Maps with free keys are lists of pairs, so that columns keep one type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from engine.domain import queries
from engine.domain.model import Device, Interval, Measurement, Verification
from engine.domain.state import Idea, SessionState
from engine.report import rewards
from engine.report.attempts import Attempt, Recording, attempts, fenced

Row = dict[str, Any]
VERSION = 1
"""Of the rows' schema."""
OWN_LICENCE = "Apache-2.0"
"""Of the playbooks that ship."""


def lines(kind: str, recordings: Iterable[Recording]) -> Iterator[str]:
    """One JSON object a line, ASCII only, sessions in the order given. Raises JournalCorrupt for a payload that is missing."""
    rows = SHAPES[kind]
    for recording in recordings:
        state, made = attempts(recording)
        for row in rows(recording, state, made):
            yield json.dumps(row, allow_nan=False)


def every(recording: Recording, state: SessionState, made: list[Attempt]) -> Iterator[Row]:
    """One row for each attempt."""
    for one in made:
        yield {
            "prompt": one.exchange.prompt,
            "idea": _idea(one.idea),
            "code": one.code,
            "verdict": _verdict(state, one),
            "reward": one.reward.value,
            "reward_basis": one.reward.basis.value,
            "reply": one.exchange.reply,
            "origin": one.exchange.origin,
            "parent_code": one.parent_code,
            "tunables": [{"name": name, "value": value} for name, value in one.kernel.tunables.items()],
            "attempt": one.number,
            "last_attempt": one.last,
            "round": one.kernel.round,
            "parent": one.kernel.parent,
            "seed": one.kernel.seed,
            **_where(recording, state, one),
        }


def chats(recording: Recording, state: SessionState, made: list[Attempt]) -> Iterator[Row]:
    """One chat for each distinct reply that gave a verified and measured kernel; its best kernel stands for it."""
    best: dict[object, Attempt] = {}
    for one in made:
        if one.verdict == "measured" and one.reward.value is not None:
            key = one.exchange.call or (one.kernel.idea, one.exchange.reply)
            known = best.get(key)
            if known is None or one.reward.value > (known.reward.value or 0.0):
                best[key] = one
    for one in best.values():
        yield {
            "messages": [_said("user", one.exchange.prompt), _said("assistant", one.exchange.reply)],
            "idea": _idea(one.idea),
            "verdict": one.verdict,
            "reward": one.reward.value,
            "reward_basis": one.reward.basis.value,
            "speedup": _interval(rewards.speedup(state, one.kernel)),
            "origin": one.exchange.origin,
            "attempt": one.number,
            **_where(recording, state, one),
        }


def preferences(recording: Recording, state: SessionState, made: list[Attempt]) -> Iterator[Row]:
    """Chosen and rejected among the attempts at one idea on one parent; replies that say the same are no pair."""
    groups: dict[tuple[str, str | None, int], list[Attempt]] = {}
    for one in made:
        if one.reward.value is not None:
            groups.setdefault((one.kernel.idea, one.kernel.parent, one.kernel.epoch), []).append(one)
    for group in groups.values():
        said: set[tuple[str, str]] = set()
        for chosen in sorted(group, key=lambda a: -(a.reward.value or 0.0)):
            for rejected in group:
                key = (chosen.code, rejected.code)
                if chosen.code != rejected.code and key not in said and _preferred(state, chosen, rejected):
                    said.add(key)
                    yield _pair(recording, state, chosen, rejected)


def _preferred(state: SessionState, chosen: Attempt, rejected: Attempt) -> bool:
    mine, theirs = rewards.speedup(state, chosen.kernel), rewards.speedup(state, rejected.kernel)
    if chosen.verdict != "measured" or mine is None:
        return False
    if rejected.reward.basis is rewards.Basis.FAILURE:
        return True
    return theirs is not None and mine.low > theirs.high


def _pair(recording: Recording, state: SessionState, chosen: Attempt, rejected: Attempt) -> Row:
    return {
        "prompt": [_said("user", chosen.question)],
        "chosen": [_said("assistant", _answer(chosen))],
        "rejected": [_said("assistant", _answer(rejected))],
        "chosen_reward": chosen.reward.value,
        "rejected_reward": rejected.reward.value,
        "reward_basis": chosen.reward.basis.value,
        "chosen_verdict": chosen.verdict,
        "rejected_verdict": rejected.verdict,
        "chosen_kernel": chosen.kernel.id,
        "rejected_kernel": rejected.kernel.id,
        "rejected_licence": _licence(recording, rejected),
        "idea": _idea(chosen.idea),
        **_where(recording, state, chosen),
    }


def _answer(one: Attempt) -> str:
    """As recorded where it answers the idea's own prompt; a repaired kernel as its code alone."""
    return one.exchange.reply if one.exchange.prompt == one.question else fenced(one.code, one.kernel.dialect)


SHAPES: Mapping[str, Callable[[Recording, SessionState, list[Attempt]], Iterator[Row]]] = {
    "sft": chats,
    "pairs": preferences,
    "jsonl": every,
}


def _said(role: str, content: str) -> Row:
    return {"role": role, "content": content}


def _where(recording: Recording, state: SessionState, one: Attempt) -> Row:
    """Which session, problem, device, author and licence: the last columns of every shape."""
    problem, workload = queries.settings_of(state)
    opened = state.opened
    return {
        "session": recording.name,
        "problem": problem,
        "problem_digest": opened.problem.digest if opened else "",
        "workload": workload,
        "baseline": queries.ranking_baseline(state),
        "device": _device(one.device),
        "kernel": one.kernel.id,
        "dialect": one.kernel.dialect.value,
        "contract": one.kernel.contract.value,
        "author": one.kernel.author.name,
        "model": one.exchange.model,
        "licence": _licence(recording, one),
        "schema": VERSION,
    }


def _licence(recording: Recording, one: Attempt) -> str:
    return OWN_LICENCE if recording.shipped and one.kernel.author.name == "playbook" else recording.licence


def _device(device: Device | None) -> Row:
    return {
        "kind": device.kind if device else None,
        "name": device.name if device else None,
        "arch": device.arch if device else None,
        "software": device.software if device else None,
    }


def _idea(idea: Idea | None) -> Row:
    text = idea.text if idea else None
    return {
        "id": idea.id if idea else None,
        "title": text.title if text else None,
        "category": text.category if text else None,
        "rationale": text.rationale if text else None,
        "predicted": text.predicted if text else None,
        "expected": text.expected if text else None,
        "risks": text.risks if text else None,
        "author": idea.author.name if idea else None,
        "edited": idea.edited if idea else None,
    }


def _verdict(state: SessionState, one: Attempt) -> Row:
    kernel = one.kernel
    measured = kernel.measurement if one.last and rewards.speedup(state, kernel) is not None else None
    verification = kernel.verification if measured is not None else None
    return {
        "status": one.verdict,
        "reason": one.failure.reason if one.failure and one.verdict != "measured" else None,
        "evidence": list(kernel.evidence) if one.last else [],
        "verification": _verification(verification),
        "depth": measured.depth if measured else None,
        "time_us": _interval(measured.time_us if measured else None),
        "speedup": _interval(rewards.speedup(state, kernel) if measured else None),
        "speedups": _speedups(measured),
        "light": _number(measured.light.fraction) if measured and measured.light else None,
        "corroborated": measured.corroborated if measured else None,
        "conditions": list(measured.conditions) if measured else [],
    }


def _verification(found: Verification | None) -> Row:
    return {
        "policy": found.policy if found else None,
        "trials": found.trials if found else None,
        "rel_fro": _number(found.rel_fro) if found else None,
        "max_abs": _number(found.max_abs) if found else None,
        "precision_class": found.precision_class.value if found else None,
        "holdouts": found.holdouts if found else None,
    }


def _speedups(measured: Measurement | None) -> list[Row]:
    return [{"baseline": name, **_interval(ratio)} for name, ratio in measured.speedup.items()] if measured else []


def _interval(found: Interval | None) -> Row:
    return {name: _number(getattr(found, name)) if found else None for name in ("value", "low", "high")}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
