"""``espalier kernel list`` and ``kernel show``: what is known about the kernels of a session."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.kernel import kernel_argument
from engine.cli.output import as_data, show, show_json, show_text, terminal_width
from engine.cli.session_access import read_state, session_argument
from engine.domain import corroboration, queries
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.report.facts.summary import device_fields
from engine.report.text.kernel import kernel_lines
from engine.report.text.lines import Line, Span, Tone, line
from engine.report.text.tree import tree
from engine.session.seeds import kernel_of


@click.command("list")
@session_argument
@click.option("--verified", is_flag=True, help="Only verified kernels, best first.")
@o.json_option
def list_kernels(session: str, verified: bool, as_json: bool) -> None:
    """List the kernels of SESSION with outcome, time and speedup, as a tree."""
    folder = store.resolve(session)
    state = read_state(folder)
    ranked = queries.ranked(state)
    chosen = ranked if verified else tuple(state.kernels.values())
    if as_json:
        show_json({"session": str(folder.absolute()), "kernels": [kernel_fields(state, k) for k in chosen]})
        return
    show(tree(state, ranked if verified else None, terminal_width()) if chosen or not verified else ["no verified kernel"])


@click.command("show")
@session_argument
@kernel_argument
@click.option("--code", is_flag=True, help="Print its code alone.")
@click.option("--diff", is_flag=True, help="Print the diff against its parent's code.")
@o.json_option
def show_kernel(session: str, kernel: str, code: bool, diff: bool, as_json: bool) -> None:
    """Show one KERNEL of SESSION: its facts and its verdict."""
    if code and diff:
        raise click.UsageError("give --code or --diff, not both")
    folder = store.resolve(session)
    state = read_state(folder)
    known = kernel_of(state, kernel, folder)
    if as_json:
        text = {"code": _code(folder, known)} if code else {"diff": "\n".join(_diff(state, folder, known))} if diff else {}
        show_json({"session": str(folder.absolute()), **kernel_fields(state, known), **as_data(_details(state, known)), **text})
    elif code:
        show_text(_code(folder, known))
    elif diff:
        show(_painted(row) for row in _diff(state, folder, known))
    else:
        show(kernel_lines(state, known))


def kernel_fields(state: SessionState, kernel: Kernel) -> Mapping[str, object]:
    """One kernel as an object for scripts."""
    timed, idea, best = kernel.measurement, state.ideas.get(kernel.idea), queries.incumbent(state)
    failure, quarantined, doubts = kernel.failure, corroboration.is_quarantined(kernel), corroboration.of_kernel(kernel)
    measured = timed if not quarantined else None
    return {
        "kernel": kernel.id, "idea": {"id": kernel.idea, "title": idea.text.title} if idea else None, "parent": kernel.parent,
        "round": kernel.round, "name": kernel.name, "author": kernel.author.name, "dialect": kernel.dialect,
        "contract": kernel.contract, "tunables": kernel.tunables, "stage": kernel.stage,
        "status": corroboration.status(kernel),
        "reason": failure.reason if failure else "; ".join(doubts) or kernel.reason or None,
        "corroborated": corroboration.is_corroborated(kernel), "quarantined": quarantined, "accepted": kernel.accepted,
        "conditions": timed.conditions if timed else (), "doubts": doubts,
        "incumbent": best is not None and best.id == kernel.id, "pinned": kernel.id in state.pinned,
        "pruned": queries.is_pruned(state, kernel.id), "seed": kernel.seed, "device": device_fields(state),
        "time_us": measured.time_us if measured else None, "speedup": measured.speedup if measured else {},
        "speed_of_light": measured.light if measured else None,
        "workloads": measured.by_workload if measured else (), "choices": kernel.choices,
        "claimed": {"time_us": timed.time_us, "speedup": timed.speedup, "speed_of_light": timed.light}
        if timed and quarantined else None,
    }  # fmt: skip


def _details(state: SessionState, kernel: Kernel) -> Mapping[str, object]:
    return {
        "children": kernel.children, "attempts": kernel.attempt + 1, "verification": kernel.verification,
        "measurement": kernel.measurement, "evidence": kernel.evidence,
        "resources": kernel.resources, "tuning": kernel.tuning, "sanitizing": kernel.sanitizing, "profile": kernel.profile,
        "mismatches": kernel.failure.mismatches if kernel.failure else (),
        "failed_on": kernel.failure.failed_on if kernel.failure else None,
        "races": [race for race in state.races if kernel.id in (race.kernel, race.against)],
        "notes": [note for note in state.notes if note.target == kernel.id],
    }  # fmt: skip


def _code(folder: Path, kernel: Kernel) -> str:
    return Blobs(folder).text(kernel.source)


def _diff(state: SessionState, folder: Path, kernel: Kernel) -> list[str]:
    parent = state.kernels.get(kernel.parent or "")
    if parent is None:
        raise CommandExit(BAD_INPUT, f"{kernel.id} has no parent to compare with: `--code` prints its code")
    before, after = _code(folder, parent).splitlines(), _code(folder, kernel).splitlines()
    rows = difflib.unified_diff(before, after, f"{parent.id}/{parent.name}", f"{kernel.id}/{kernel.name}", lineterm="")
    return list(rows) or [f"{kernel.id} has the code of {parent.id}"]


def _painted(row: str) -> Line:
    tone = {"+": Tone.GOOD, "-": Tone.BAD, "@": Tone.FAINT}.get(row[:1], Tone.PLAIN)
    return line(Span(row, tone))
