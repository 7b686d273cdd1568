"""``espalier export``: the best kernel as a module, a report, training data, or the whole session as one file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.output import as_data, show, show_json
from engine.cli.session_access import read_entries, read_state
from engine.domain import queries
from engine.domain.errors import KernelCodeError, ProblemError
from engine.domain.events import SessionOpened
from engine.domain.state import Kernel, SessionState
from engine.export import bundle, rewards, training
from engine.export import module as exporting
from engine.export.attempts import RecordedSession
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.problem import catalog
from engine.report.facts.summary import summarise
from engine.report.page import content, render
from engine.report.text.lines import counted, duration_interval, times, tunables
from engine.session.seeds import kernel_of, recorded_code

_TRAINING = ("sft", "pairs", "jsonl")
_SUFFIX = {"module": ".py", "report": ".html", "bundle": bundle.SUFFIX, "json": ".json"} | {
    kind: f".{kind}.jsonl" if kind != "jsonl" else ".jsonl" for kind in _TRAINING
}
_MARKDOWN = (".md", ".markdown")
_REWARDS = ", ".join(f"{kind.value} {value:g}" for kind, value in rewards.FAILURES.items())
_HELP = f"""Write a result of SESSION as a file.

    \b
    module  the best kernel as one importable file: a ModelNew, an operator of torch.library,
            its own test (--test) and its own benchmark (--bench)
    report  one self-contained page: tree, charts, ideas with their gains, decisions,
            conditions, the winner's code (HTML; Markdown where FILE ends in .md)
    sft     chats that ended in a verified kernel ("messages"), one a line
    pairs   two answers to one idea ("prompt", "chosen", "rejected"), one a line
    jsonl   every attempt at every kernel, failures included, one a line
    bundle  the session as one file (.tar.gz, .tgz or .tar) that `session import`,
            `open` and `replay` take
    json    its data

    Training data (sft, pairs, jsonl) takes several sessions. A row's reward is ln(speedup over the parent), or over the
    baseline where there is no measured parent, and never below {rewards.LEAST_MEASURED:g}; a failure's is a constant
    ({_REWARDS}); null if unknown.
    """


@click.command(help=_HELP)
@click.argument("sessions", type=o.SESSION, metavar="SESSION...", nargs=-1, required=True)
@click.option("--format", "kind", type=o.KnownValue(list(_SUFFIX)), default="module", show_default=True, help="See above.")
@click.option("--kernel", type=o.KERNEL, metavar="K", help="The kernel of a module. Default: the incumbent.")
@click.option("--licence", default="unspecified", show_default=True, metavar="TEXT",
              help="Licence of the code and texts in training data, e.g. an SPDX name.")  # fmt: skip
@click.option("--output", "-o", type=o.PATH, metavar="FILE", help="Default: named after the session, in the working folder.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@o.json_option
def export(
    sessions: tuple[str, ...], kind: str, kernel: str | None, licence: str, output: Path | None, force: bool, as_json: bool
) -> None:
    """See ``_HELP``."""
    folders = [store.resolve(session) for session in dict.fromkeys(sessions)]
    rows: int | None = None
    if kind in _TRAINING:
        target, rows = _export_training_data(folders, kind, licence, output, force)
    elif len(folders) > 1:
        raise ProblemError(f"--format {kind} takes one session; only {', '.join(_TRAINING)} take several")
    else:
        target = _export_session(folders[0], kind, kernel, output, force)
    if as_json:
        where = [str(folder.absolute()) for folder in folders]
        show_json({"file": str(target.absolute()), "format": kind, "sessions": where, "rows": rows})
    else:
        counts = f": {counted(rows, 'row')} from {counted(len(folders), 'session')}" if rows is not None else ""
        show([f"wrote {target}{counts}"])


def _export_session(folder: Path, kind: str, kernel: str | None, output: Path | None, force: bool) -> Path:
    state = read_state(folder)
    chosen = _kernel_to_export(state, folder, kernel) if kind == "module" else None
    stem = folder.name if chosen is None else f"{queries.problem_and_workload(state)[0]}_{chosen.id}"
    target = _output_file(output, f"{stem}{_SUFFIX[kind]}", force)
    if kind == "bundle":
        bundle.pack(folder, target)
    elif kind == "report":
        _write(target, _report_text(folder, target))
    elif chosen is not None:
        _write(target, _module_text(state, folder, chosen, target.name))
    else:
        _write(target, json.dumps(_session_data(state, folder), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return target


def _output_file(output: Path | None, default: str, force: bool) -> Path:
    target = output or Path(default)
    if target.exists() and not force:
        raise ProblemError(f"{target} already exists: choose another file with --output, or overwrite it with --force")
    return target


def _export_training_data(folders: list[Path], kind: str, licence: str, output: Path | None, force: bool) -> tuple[Path, int]:
    stem = folders[0].name if len(folders) == 1 else "sessions"
    target = _output_file(output, f"{stem}{_SUFFIX[kind]}", force)
    rows = list(training.lines(kind, (_recorded_session(folder, licence) for folder in folders)))
    if not rows:
        raise KernelCodeError(f"nothing to export with --format {kind} in {', '.join(folder.name for folder in folders)}")
    _write(target, "".join(f"{row}\n" for row in rows))
    return target, len(rows)


def _recorded_session(folder: Path, licence: str) -> RecordedSession:
    entries = read_entries(folder)
    opened = entries[0].event if entries else None
    shipped = isinstance(opened, SessionOpened) and opened.problem.origin in catalog.shipped_names()
    return RecordedSession(folder.name, entries, Blobs(folder).text, licence, shipped)


def _report_text(folder: Path, target: Path) -> str:
    page = content.page(folder.name, journal.read(folder).entries, Blobs(folder).text)
    return render.markdown(page) if target.suffix.lower() in _MARKDOWN else render.html(page)


def _kernel_to_export(state: SessionState, folder: Path, name: str | None) -> Kernel:
    if name is not None:
        return kernel_of(state, name, folder)
    best = queries.incumbent(state)
    if best is None:
        raise KernelCodeError(f"session {folder.name} has no verified kernel to export: choose one with --kernel")
    return best


def _module_text(state: SessionState, folder: Path, kernel: Kernel, file: str) -> str:
    if state.opened is None or state.preparation is None or state.device is None:
        raise ProblemError(f"session {folder.name} has not been prepared yet: nothing to export")
    workload = catalog.workload_for(state.opened.problem, state.opened.settings.workload)
    exported = exporting.Exported(
        state.opened.problem, workload, state.preparation.signature, state.device, recorded_code(folder, kernel),
        kernel.tunables, _remarks(state, folder, kernel), state.preparation.gate, file,
    )  # fmt: skip
    return exporting.module(exported)


def _remarks(state: SessionState, folder: Path, kernel: Kernel) -> tuple[str, ...]:
    problem, workload = queries.problem_and_workload(state)
    chosen = f" with {tunables(kernel.tunables)}" if kernel.tunables else ""
    remarks = [f"{queries.title(state, kernel)}: kernel {kernel.id} of espalier session {folder.name}{chosen}."]
    measured, ratio = kernel.measurement, queries.speedup(state, kernel)
    if measured is not None and ratio is not None and state.device is not None:
        base = queries.ranking_baseline(state)
        remarks.append(
            f"Problem {problem}, workload {workload}. Measured on {state.device.name}: {duration_interval(measured.time_us)}, "
            f"{times(ratio)} {base} (95% intervals; {', '.join((measured.depth, *measured.conditions))}), "
            f"{kernel.contract.value} contract."
        )
    else:
        remarks.append(f"Problem {problem}, workload {workload}. Not verified on the session's device.")
    if (proof := kernel.verification) is not None:
        remarks.append(
            f"Verified under {proof.policy}: precision class {proof.precision_class.value}, centred error {proof.rel_fro:.2g} "
            f"of {proof.rel_fro_limit:.2g} allowed in {counted(proof.trials, 'call')}; other shapes: {proof.holdouts}."
        )
    return tuple(remarks)


def _session_data(state: SessionState, folder: Path) -> dict[str, object]:
    plain: dict[str, object] = as_data(summarise(state, folder))
    opened = state.opened
    tables = {
        "settings": opened.settings if opened else None, "versions": opened.versions if opened else {},
        "prepared_on": state.device, "preparation": state.preparation, "closed": state.closed, "limits": state.limits,
        "rounds_table": list(state.rounds.values()), "ideas_table": list(state.ideas.values()),
        "kernels_table": list(state.kernels.values()), "pinned": state.pinned, "pruned": state.pruned,
        "notes": [{**as_data(note), "by": note.by.name} for note in state.notes],
    }  # fmt: skip
    return {**plain, **as_data(tables)}


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProblemError(f"{target} cannot be written ({error.strerror}): choose another file with --output") from error
