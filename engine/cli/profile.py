"""``espalier profile``: what the device's counters say of one kernel of a session, kept in its journal."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.ending import DONE, FAILED, end
from engine.cli.kernels import kernel_of, source_of
from engine.cli.machine import checked_device
from engine.cli.output import show, show_json
from engine.cli.reading import state_of
from engine.cli.running import Teller, drive
from engine.domain import bottleneck
from engine.domain import commands as c
from engine.domain import profile as words
from engine.domain.model import Blob
from engine.domain.profile import Profile
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.journal.lock import WriterLock
from engine.report.text import Line, Span, Tone, line, table
from engine.session import assembly
from engine.session.live import LiveSession
from engine.trial.bench import Source, TrialBench


@click.command()
@click.argument("session")
@click.argument("kernel")
@click.option("--device", metavar="cpu|cuda:N", help="Where; default: the kind of device the session was recorded on.")
@o.json_option
def profile(session: str, kernel: str, device: str | None, as_json: bool) -> None:
    """Read the device's counters in calls of KERNEL of SESSION, and show what holds it up.

    On a GPU one call under Nsight Compute: how busy the device is, what its warps wait for. On a CPU the mean of many calls
    under perf: instructions, cycles, misses of caches and branches. Each figure is shown with what it was in the kernel's
    parent, where that was profiled on the same device. The profile is kept in the session, and models are shown it. Exit
    status: 0 when counters were read, 1 when they could not be, with why.
    """
    folder = store.resolve(session)
    state = state_of(folder)
    chosen = kernel_of(state, kernel, folder)
    WriterLock(folder).release()
    teller = Teller()
    try:
        found, payloads = _profiled(state, chosen, folder, device, teller)
    finally:
        teller.moment.clear()

    async def keep() -> tuple[SessionState, SessionState]:
        return await assembly.steer(folder, lambda live: [_keeping(live, chosen, found, payloads)])

    drive(keep)
    before = _parents(state, chosen)
    short = bottleneck.summary(found, state.preparation.bytes_moved if state.preparation else 0)
    if as_json:
        show_json(_object(chosen, found, before, short))
    else:
        show(_lines(chosen, found, before, short))
    end(DONE if found.tool else FAILED)


def _profiled(
    state: SessionState, kernel: Kernel, folder: Path, device: str | None, teller: Teller
) -> tuple[Profile, dict[Blob, bytes]]:
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    label = checked_device(device or (state.device.label if state.device else opened.device))
    text = source_of(folder, kernel)
    assembly.check_dialect(text, label)
    payloads: dict[Blob, bytes] = {}

    def put(payload: bytes) -> Blob:
        name = hashlib.sha256(payload).hexdigest()
        payloads[name] = payload
        return name

    async def work() -> Profile:
        bench = TrialBench(assembly.assignment(opened, label), put)
        try:
            source = Source(text.name, text.text, text.dialect, text.contract, kernel.tunables)
            return await bench.profile_source(source, teller.say)
        finally:
            await bench.close()

    return replace(drive(work), attempt=kernel.attempt), payloads


def _keeping(live: LiveSession, kernel: Kernel, found: Profile, payloads: dict[Blob, bytes]) -> c.RecordProfile:
    if found.log:
        live.store_blob(payloads[found.log])
    return c.RecordProfile(kernel.id, found)


def _parents(state: SessionState, kernel: Kernel) -> Profile | None:
    parent = state.kernels.get(kernel.parent or "")
    return parent.profile if parent is not None else None


def _lines(kernel: Kernel, found: Profile, before: Profile | None, short: str) -> list[Line]:
    if not found.tool:
        return [line(Span(kernel.id, Tone.STRONG), Span(f" {words.line(found)}", Tone.WARN))]
    many = f"mean of {found.calls} calls" if found.calls > 1 else "one call"
    said = f" on {found.device}, {many}{f' of {found.launches} launches' if found.launches > 1 else ''}, by {found.tool}"
    rows = [
        (Span(row.label), Span(row.words), Span(row.delta), Span(row.moved, Tone.FAINT)) for row in words.rows(found, before)
    ]
    if before is not None and before.device == found.device:
        rows.insert(0, (Span(""), Span(kernel.id), Span(""), Span(f"beside {kernel.parent}", Tone.FAINT)))
    return [
        line(Span(kernel.id, Tone.STRONG), said),
        *table(rows),
        *([line(short)] if short else []),
        *([line(Span(found.note, Tone.FAINT))] if found.note else []),
    ]


def _object(kernel: Kernel, found: Profile, before: Profile | None, short: str) -> dict[str, object]:
    return {
        "kernel": kernel.id,
        "parent": kernel.parent,
        "device": found.device,
        "tool": found.tool,
        "reason": found.note,
        "launches": found.launches,
        "calls": found.calls,
        "metrics": dict(found.metrics),
        "stalls_percent": dict(found.stalls),
        "summary": short,
        "parent_metrics": dict(before.metrics) if before is not None and before.device == found.device else None,
    }
