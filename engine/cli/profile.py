"""``espalier kernel profile``: hardware counters and hot code of one kernel of a session, kept in its journal."""

from __future__ import annotations

from dataclasses import asdict

import click

from engine.api.profiling import profile_kernel
from engine.cli import options as o
from engine.cli.drive import drive
from engine.cli.exit_codes import DONE, FAILED, end
from engine.cli.output import show, show_json
from engine.cli.session_access import asking_author, read_state, session_argument
from engine.cli.verbosity import verbosity
from engine.domain import bottleneck, hot_code, queries
from engine.domain import profile as profiles
from engine.domain.profile import Profile
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.journal.lock import refuse_shipped
from engine.report.text.lines import Line, Span, Tone, line, table
from engine.session.seeds import kernel_of
from engine.session.steer import steer


@click.command()
@session_argument
@click.argument("kernel", type=o.KERNEL)
@o.recorded_device_option
@o.json_option
@verbosity
def profile(session: str, kernel: str, device: str | None, as_json: bool) -> None:
    """Read the hardware counters of KERNEL of SESSION, and name its likely bottleneck and its hot code.

    On a GPU: one call under Nsight Compute, with utilisation and warp stalls. On a CPU: the mean of many calls under perf, with
    instructions, cycles, cache and branch misses; and samples of the program counter in a further run, which need no counters:
    the source lines in which the kernel spends its time. Each counter is compared with that of the kernel's parent, if the
    parent was profiled on the same device. The profile is kept in the session and shown to models. Exit status: 0 when counters
    or samples were read, 1 when neither could be read; the reason is printed.
    """
    folder = store.resolve(session)
    refuse_shipped(folder)
    state = read_state(folder)
    target = kernel_of(state, kernel, folder)
    label = device or queries.device_label(state)
    found = drive(lambda printer: profile_kernel(folder, state, target, label, printer.show))
    steer(folder, lambda view: [found.command(view)], asking_author())
    measured = found.profile
    before = _parent_profile(state, target)
    summary = bottleneck.summary(measured, state.preparation.bytes_moved if state.preparation else 0)
    if as_json:
        show_json(_json_object(target, measured, before, summary))
    else:
        show(_lines(target, measured, before, summary))
    end(DONE if measured.was_read else FAILED)


def _parent_profile(state: SessionState, kernel: Kernel) -> Profile | None:
    parent = state.kernels.get(kernel.parent or "")
    return parent.profile if parent is not None else None


def _lines(kernel: Kernel, profile: Profile, before: Profile | None, summary: str) -> list[Line]:
    if not profile.tool:
        return [line(Span(kernel.id, Tone.STRONG), Span(f" {profiles.line(profile)}", Tone.WARN)), *_hot_lines(profile)]
    many = f"mean of {profile.calls} calls" if profile.calls > 1 else "one call"
    how = f" on {profile.device}, {many}{f' of {profile.launches} launches' if profile.launches > 1 else ''}, by {profile.tool}"
    rows = [
        (Span(row.label), Span(row.words), Span(row.delta), Span(row.moved, Tone.FAINT))
        for row in profiles.rows(profile, before)
    ]
    if before is not None and before.device == profile.device:
        rows.insert(0, (Span(""), Span(kernel.id), Span(""), Span(f"compared with {kernel.parent}", Tone.FAINT)))
    return [
        line(Span(kernel.id, Tone.STRONG), how),
        *table(rows),
        *([line(summary)] if summary else []),
        *([line(Span(profile.note, Tone.FAINT))] if profile.note else []),
        *_hot_lines(profile),
    ]


def _hot_lines(profile: Profile) -> list[Line]:
    """The hottest lines with their shares, or the deepest loops."""
    if profile.hot is None:
        return []
    if not profile.hot.samples:
        return [line(loop.words) for loop in profile.hot.loops]
    rows = [(Span(row.words, Tone.STRONG), Span(row.place), Span(row.text)) for row in hot_code.rows(profile.hot)]
    return [line(f"hot code, of {profile.hot.samples:,} samples:"), *table(rows), line(Span(hot_code.SKID, Tone.FAINT))]


def _json_object(kernel: Kernel, profile: Profile, before: Profile | None, summary: str) -> dict[str, object]:
    return {
        "kernel": kernel.id,
        "parent": kernel.parent,
        "device": {"name": profile.device},
        "tool": profile.tool,
        "reason": profile.note,
        "launches": profile.launches,
        "calls": profile.calls,
        "metrics": dict(profile.metrics),
        "stalls_percent": dict(profile.stalls),
        "summary": summary,
        "hot_code": None
        if (hot := profile.hot) is None
        else {
            "samples": hot.samples,
            "elsewhere": dict(hot.elsewhere),
            "lines": [{"line": one.line, "text": one.text, "samples": one.samples} for one in hot.lines],
            "loops": [asdict(loop) for loop in hot.loops],
        },
        "parent_metrics": dict(before.metrics) if before is not None and before.device == profile.device else None,
    }
