"""Folds of model calls and of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.domain import events as e
from engine.domain.folds.batch import Fold, StateBatch
from engine.domain.state import CallStatus, ModelCall
from engine.domain.work import WorkKey


def _call_started(b: StateBatch, entry: e.Entry, ev: e.CallStarted) -> None:
    b.table("calls")[ev.call] = ModelCall(
        ev.call, WorkKey.parse(ev.work), ev.role, ev.model, ev.prompt, ev.ceiling, entry.at, max_output=ev.max_output,
    )  # fmt: skip


def _call_answered(b: StateBatch, entry: e.Entry, ev: e.CallAnswered) -> None:
    calls = b.table("calls")
    if ev.call in calls:
        calls[ev.call] = replace(
            calls[ev.call], status=CallStatus.ANSWERED, reply=ev.reply, usage=calls[ev.call].usage + ev.usage, usd=ev.usd,
            finish=ev.finish, seconds=ev.seconds, recalled=ev.recalled, estimated=ev.estimated,
        )  # fmt: skip


def _call_failed(b: StateBatch, entry: e.Entry, ev: e.CallFailed) -> None:
    calls = b.table("calls")
    if ev.call in calls:
        known = calls[ev.call]
        usd = known.usd if ev.usd is None else (known.usd or 0.0) + ev.usd
        calls[ev.call] = replace(
            known, status=CallStatus.FAILED, reason=ev.reason, usage=known.usage + ev.usage, usd=usd,
            cancelled=known.cancelled or ev.cancelled, estimated=known.estimated or ev.estimated,
        )  # fmt: skip


def _budget_reached(b: StateBatch, entry: e.Entry, ev: e.BudgetReached) -> None:
    b.finish(WorkKey.parse(ev.work))
    b.set(capped=ev.reason)


def _work_started(b: StateBatch, entry: e.Entry, ev: e.WorkStarted) -> None:
    started, key = b.table("started"), WorkKey.parse(ev.work)
    started[key] = started.get(key, 0) + 1


def _work_failed(b: StateBatch, entry: e.Entry, ev: e.WorkFailed) -> None:
    key = WorkKey.parse(ev.work)
    b.finish(key)
    b.table("broken")[key] = ev.reason
    if ev.called_off:
        b.table("called_off")[key] = ev.reason
        for call in [call for call in b.peek("calls").values() if call.work == key and call.cancelled]:
            b.table("calls")[call.id] = replace(call, cancelled=False)


def _work_retried(b: StateBatch, entry: e.Entry, ev: e.WorkRetried) -> None:
    for key in map(WorkKey.parse, ev.works):
        b.table("broken").pop(key, None)
        b.table("called_off").pop(key, None)


FOLDS: Mapping[type, Fold] = {
    e.CallStarted: _call_started,
    e.CallAnswered: _call_answered,
    e.CallFailed: _call_failed,
    e.BudgetReached: _budget_reached,
    e.WorkStarted: _work_started,
    e.WorkFailed: _work_failed,
    e.WorkRetried: _work_retried,
}
