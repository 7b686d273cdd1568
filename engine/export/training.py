"""Sessions as training data: JSON Lines in three shapes, each with one schema for all rows. Recordings in, rows out.

``jsonl``: every attempt at every kernel, including failures: prompt, idea, code, verdict, reward, device, licence.
``sft``: chats (``messages``) that ended in a verified and measured kernel; a reply with several kernels occurs once.
``pairs``: two answers to the same idea on the same parent (``prompt``, ``chosen``, ``rejected``). The chosen one is verified;
the rejected one failed, or its 95% interval lies below.

A kernel that is not corroborated, or quarantined, is no example to follow: it is only in ``jsonl``, without a reward, and what
a quarantined one claims is no speedup. Every row says so (``corroborated``, ``quarantined``, ``doubts``). Doubts that the
engineer dismissed by accepting the kernel stay in its rows.

Rewards: ``engine.export.rewards``. Maps with free keys are lists of pairs, so that columns keep one type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from engine.domain import corroboration, queries
from engine.domain.model import Interval, Measurement
from engine.domain.state import Idea, SessionState
from engine.export import rewards
from engine.export.attempts import Attempt, RecordedSession, attempts, fenced

Row = dict[str, Any]
VERSION = 2
"""Version of the rows' schema."""
OWN_LICENCE = "Apache-2.0"
"""Licence of the shipped playbooks."""


def lines(kind: str, recordings: Iterable[RecordedSession]) -> Iterator[str]:
    """One JSON object per line, ASCII only, sessions in the given order. Raises JournalCorrupt for a missing payload."""
    rows = SHAPES[kind]
    for recording in recordings:
        state, every = attempts(recording)
        for row in rows(recording, state, every):
            yield json.dumps(row, allow_nan=False)


def attempt_rows(recording: RecordedSession, state: SessionState, every: list[Attempt]) -> Iterator[Row]:
    """One row per attempt."""
    for one in every:
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
            **_doubts(one),
            **_provenance(recording, state, one),
        }


def chat_rows(recording: RecordedSession, state: SessionState, every: list[Attempt]) -> Iterator[Row]:
    """One chat per distinct reply with a verified and measured kernel, represented by the kernel with the highest reward."""
    best: dict[object, Attempt] = {}
    for one in every:
        if one.verdict == "measured" and one.reward.value is not None:
            key = one.exchange.call or (one.kernel.idea, one.exchange.reply)
            known = best.get(key)
            if known is None or one.reward.value > (known.reward.value or 0.0):
                best[key] = one
    for one in best.values():
        yield {
            "messages": [_message("user", one.exchange.prompt), _message("assistant", one.exchange.reply)],
            "idea": _idea(one.idea),
            "verdict": one.verdict,
            "reward": one.reward.value,
            "reward_basis": one.reward.basis.value,
            "speedup": _interval(rewards.speedup(state, one.kernel)),
            "origin": one.exchange.origin,
            "attempt": one.number,
            **_doubts(one),
            **_provenance(recording, state, one),
        }


def preference_rows(recording: RecordedSession, state: SessionState, every: list[Attempt]) -> Iterator[Row]:
    """Pairs of attempts at one idea on one parent, chosen and rejected. Equal code makes no pair."""
    groups: dict[tuple[str, str | None, int], list[Attempt]] = {}
    for one in every:
        if one.reward.value is not None:
            groups.setdefault((one.kernel.idea, one.kernel.parent, one.kernel.epoch), []).append(one)
    for group in groups.values():
        seen: set[tuple[str, str]] = set()
        for chosen in sorted(group, key=lambda a: -(a.reward.value or 0.0)):
            for rejected in group:
                key = (chosen.code, rejected.code)
                if chosen.code != rejected.code and key not in seen and _is_preferred(state, chosen, rejected):
                    seen.add(key)
                    yield _pair_row(recording, state, chosen, rejected)


def _is_preferred(state: SessionState, chosen: Attempt, rejected: Attempt) -> bool:
    mine, theirs = rewards.speedup(state, chosen.kernel), rewards.speedup(state, rejected.kernel)
    if chosen.verdict != "measured" or mine is None:
        return False
    if rejected.reward.basis is rewards.Basis.FAILURE:
        return True
    return theirs is not None and mine.low > theirs.high


def _pair_row(recording: RecordedSession, state: SessionState, chosen: Attempt, rejected: Attempt) -> Row:
    return {
        "prompt": [_message("user", chosen.question)],
        "chosen": [_message("assistant", _answer(chosen))],
        "rejected": [_message("assistant", _answer(rejected))],
        "chosen_reward": chosen.reward.value,
        "rejected_reward": rejected.reward.value,
        "reward_basis": chosen.reward.basis.value,
        "chosen_verdict": chosen.verdict,
        "rejected_verdict": rejected.verdict,
        "chosen_kernel": chosen.kernel.id,
        "rejected_kernel": rejected.kernel.id,
        "rejected_licence": _licence(recording, rejected),
        "idea": _idea(chosen.idea),
        **_doubts(chosen),
        **_provenance(recording, state, chosen),
    }


def _answer(one: Attempt) -> str:
    """The recorded reply if it answers the idea's own prompt; only the code for a repaired kernel."""
    return one.exchange.reply if one.exchange.prompt == one.question else fenced(one.code, one.kernel.dialect)


SHAPES: Mapping[str, Callable[[RecordedSession, SessionState, list[Attempt]], Iterator[Row]]] = {
    "sft": chat_rows,
    "pairs": preference_rows,
    "jsonl": attempt_rows,
}


def _message(role: str, content: str) -> Row:
    return {"role": role, "content": content}


def _provenance(recording: RecordedSession, state: SessionState, one: Attempt) -> Row:
    """Session, problem, device, author and licence: the last columns of every shape."""
    problem, workload = queries.problem_and_workload(state)
    opened = state.opened
    return {
        "session": recording.name,
        "problem": problem,
        "problem_digest": opened.problem.digest if opened else "",
        "workload": workload,
        "baseline": queries.ranking_baseline(state),
        "device": _fields(one.device, "kind", "name", "arch", "software"),
        "kernel": one.kernel.id,
        "dialect": one.kernel.dialect.value,
        "contract": one.kernel.contract.value,
        "author": one.kernel.author.name,
        "model": one.exchange.model,
        "licence": _licence(recording, one),
        "schema": VERSION,
    }


def _licence(recording: RecordedSession, one: Attempt) -> str:
    return OWN_LICENCE if recording.shipped and one.kernel.author.name == "playbook" else recording.licence


def _idea(idea: Idea | None) -> Row:
    return {
        **_fields(idea, "id"),
        **_fields(idea and idea.text, "title", "category", "rationale", "predicted", "expected", "risks"),
        "author": idea.author.name if idea else None,
        **_fields(idea, "edited"),
    }


def _verdict(state: SessionState, one: Attempt) -> Row:
    kernel = one.kernel
    timed = kernel.measurement if one.last and rewards.speedup(state, kernel) is not None else None
    verification = kernel.verification if timed is not None else None
    quarantined = corroboration.is_quarantined(kernel)
    measured, claimed = (None, timed) if quarantined else (timed, None)
    base = queries.ranking_baseline(state)
    errors = ("policy", "trials", "rel_fro", "max_abs", "precision_class", "holdouts")
    return {
        "status": one.verdict,
        "reason": one.failure.reason if one.failure and one.verdict != "measured" else None,
        "evidence": list(kernel.evidence) if one.last else [],
        "verification": _fields(verification, *errors),
        **_fields(measured, "depth"),
        "time_us": _interval(measured.time_us if measured else None),
        "speedup": _interval(rewards.speedup(state, kernel) if measured else None),
        "speedups": _speedups(measured),
        "sustained": _sustained(measured, base),
        "by_workload": [
            {"workload": one.workload, "time_us": _interval(one.time_us), "speedup": _interval(one.speedup.get(base))}
            for one in (measured.by_workload if measured else ())
        ],
        "light": _finite(measured.light.fraction) if measured and measured.light else None,
        **_fields(timed, "corroborated"),
        "conditions": list(timed.conditions) if timed else [],
        "claimed": {
            "time_us": _interval(claimed.time_us if claimed else None),
            "speedup": _interval(rewards.speedup(state, kernel) if claimed else None),
        },
    }


def _sustained(measured: Measurement | None, baseline: str) -> Row:
    """The figures of calls back to back; null where they were not measured."""
    found = measured.sustained if measured is not None else None
    speedup = found.speedup.get(baseline) if found is not None else None
    return {
        "time_us": _interval(found.time_us if found is not None else None), "speedup": _interval(speedup),
        **_fields(found, "corroborated"),
    }  # fmt: skip


def _doubts(one: Attempt) -> Row:
    """Whether the attempt's time is a result, and why not. A failed attempt has no time that could be corroborated."""
    kernel = one.kernel
    return {
        "corroborated": one.last and kernel.stage.settled and corroboration.is_corroborated(kernel),
        "quarantined": one.last and corroboration.is_quarantined(kernel),
        "doubts": list(corroboration.of_kernel(kernel)) if one.last else [],
    }


def _speedups(measured: Measurement | None) -> list[Row]:
    return [{"baseline": name, **_interval(ratio)} for name, ratio in measured.speedup.items()] if measured else []


def _interval(found: Interval | None) -> Row:
    return _fields(found, "value", "low", "high")


def _fields(record: object | None, *names: str) -> Row:
    """These fields of a record; all ``None`` without a record. Values that JSON cannot represent are ``None``, too."""
    return {name: _finite(getattr(record, name)) if record is not None else None for name in names}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
