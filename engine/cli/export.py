"""``espalier export``: a session's best kernel as a module, its report, sessions as training data, a session as one file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.kernels import kernel_of, source_of
from engine.cli.output import as_data, show
from engine.cli.reading import entries_of, state_of
from engine.cli.running import summary_of
from engine.domain import queries
from engine.domain.errors import ProblemError, SourceError
from engine.domain.events import SessionOpened
from engine.domain.state import Kernel, SessionState
from engine.journal import bundle, journal, store
from engine.journal.blobs import Blobs
from engine.problem import catalog
from engine.report import export as exporting
from engine.report import page, page_html, page_markdown, rewards, training
from engine.report.attempts import Recording
from engine.report.text import counted, duration_interval, times, tunables

_TRAINING = ("sft", "pairs", "jsonl")
_SUFFIX = {"module": ".py", "report": ".html", "bundle": bundle.SUFFIX, "json": ".json"} | {
    kind: f".{kind}.jsonl" if kind != "jsonl" else ".jsonl" for kind in _TRAINING
}
_MARKDOWN = (".md", ".markdown")
_REWARDS = ", ".join(f"{kind.value} {value:g}" for kind, value in rewards.FAILURES.items())
_HELP = f"""Write what came of SESSION as a file that can be used or sent elsewhere.

    \b
    module  the best kernel as one importable file: a ModelNew, an operator of torch.library,
            its own test (--test) and its own benchmark (--bench)
    report  one self-contained page: tree, charts, ideas with their gains, decisions,
            conditions, the winner's code (HTML; Markdown where FILE ends in .md)
    sft     chats that ended in a verified kernel ("messages"), one a line
    pairs   two answers to one idea ("prompt", "chosen", "rejected"), one a line
    jsonl   every attempt at every kernel, failures included, one a line
    bundle  the session as one file
    json    its data

    Training data (sft, pairs, jsonl) takes several sessions. A row's reward is ln(speedup over the parent), or over the
    baseline where there is no measured parent, and never below {rewards.LEAST_MEASURED:g}; a failure's is a constant
    ({_REWARDS}); null where nothing is known.
    """


@click.command(help=_HELP)
@click.argument("sessions", metavar="SESSION...", nargs=-1, required=True)
@click.option("--format", "kind", type=click.Choice(list(_SUFFIX)), default="module", show_default=True, help="See above.")
@click.option("--kernel", metavar="K", help="Another kernel than the best one, for a module.")
@click.option("--licence", default="unspecified", show_default=True, metavar="TEXT",
              help="Of what models and people wrote, for training data, e.g. an SPDX name.")  # fmt: skip
@click.option("--output", "-o", type=o.PATH, metavar="FILE", help="Default: a name made from the session's, here.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def export(sessions: tuple[str, ...], kind: str, kernel: str | None, licence: str, output: Path | None, force: bool) -> None:
    """See ``_HELP``."""
    folders = [store.resolve(session) for session in dict.fromkeys(sessions)]
    if kind in _TRAINING:
        _train(folders, kind, licence, output, force)
    elif len(folders) > 1:
        raise ProblemError(f"--format {kind} takes one session: several go into {', '.join(_TRAINING)} only")
    else:
        _one(folders[0], kind, kernel, output, force)


def _one(folder: Path, kind: str, kernel: str | None, output: Path | None, force: bool) -> None:
    state = state_of(folder)
    chosen = _kernel(state, folder, kernel) if kind == "module" else None
    stem = folder.name if chosen is None else f"{queries.settings_of(state)[0]}_{chosen.id}"
    target = _target(output, f"{stem}{_SUFFIX[kind]}", force)
    if kind == "bundle":
        bundle.pack(folder, target)
    elif kind == "report":
        _write(target, _report(folder, target))
    elif chosen is not None:
        _write(target, _module(state, folder, chosen, target.name))
    else:
        _write(target, json.dumps(_data(state, folder), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    show([f"{target} written"])


def _target(output: Path | None, usual: str, force: bool) -> Path:
    target = output or Path(usual)
    if target.exists() and not force:
        raise ProblemError(f"{target} is there already: name another file with --output, or overwrite it with --force")
    return target


def _train(folders: list[Path], kind: str, licence: str, output: Path | None, force: bool) -> None:
    stem = folders[0].name if len(folders) == 1 else "sessions"
    target = _target(output, f"{stem}{_SUFFIX[kind]}", force)
    rows = list(training.lines(kind, (_recording(folder, licence) for folder in folders)))
    if not rows:
        raise SourceError(f"there is nothing for --format {kind} in {', '.join(folder.name for folder in folders)}")
    _write(target, "".join(f"{row}\n" for row in rows))
    show([f"{target} written: {counted(len(rows), 'row')} from {counted(len(folders), 'session')}"])


def _recording(folder: Path, licence: str) -> Recording:
    entries = entries_of(folder)
    opened = entries[0].event if entries else None
    shipped = isinstance(opened, SessionOpened) and opened.problem.origin in catalog.shipped_names()
    return Recording(folder.name, entries, Blobs(folder).text, licence, shipped)


def _report(folder: Path, target: Path) -> str:
    found = page.page(folder.name, journal.read(folder).entries, Blobs(folder).text)
    return page_markdown.render(found) if target.suffix.lower() in _MARKDOWN else page_html.render(found)


def _kernel(state: SessionState, folder: Path, name: str | None) -> Kernel:
    if name is not None:
        return kernel_of(state, name, folder)
    best = queries.incumbent(state)
    if best is None:
        raise SourceError(f"session {folder.name} has no verified kernel to export: name one with --kernel")
    return best


def _module(state: SessionState, folder: Path, kernel: Kernel, file: str) -> str:
    if state.opened is None or state.preparation is None or state.device is None:
        raise ProblemError(f"session {folder.name} has not been prepared yet: nothing can be exported from it")
    workload = catalog.workload_for(state.opened.problem, state.opened.settings.workload)
    given = exporting.Exported(
        state.opened.problem, workload, state.preparation.signature, state.device, source_of(folder, kernel),
        kernel.tunables, _remarks(state, folder, kernel), state.preparation.gate, file,
    )  # fmt: skip
    return exporting.module(given)


def _remarks(state: SessionState, folder: Path, kernel: Kernel) -> tuple[str, ...]:
    problem, workload = queries.settings_of(state)
    idea = state.ideas.get(kernel.idea)
    chosen = f" with {tunables(kernel.tunables)}" if kernel.tunables else ""
    remarks = [f"{idea.text.title if idea else kernel.name}: kernel {kernel.id} of espalier session {folder.name}{chosen}."]
    measured, ratio = kernel.measurement, queries.speedup(state, kernel)
    if measured is not None and ratio is not None and state.device is not None:
        base = queries.ranking_baseline(state)
        remarks.append(
            f"Problem {problem}, workload {workload}. Measured on {state.device.name}: {duration_interval(measured.time_us)}, "
            f"{times(ratio)} {base} (95% intervals; {', '.join((measured.depth, *measured.conditions))}), "
            f"{kernel.contract.value} contract."
        )
    else:
        remarks.append(f"Problem {problem}, workload {workload}. It has not been verified on the session's device.")
    if (proof := kernel.verification) is not None:
        remarks.append(
            f"Verified under {proof.policy}: precision class {proof.precision_class.value}, centred error {proof.rel_fro:.2g} "
            f"of {proof.rel_fro_limit:.2g} allowed in {counted(proof.trials, 'call')}; other shapes: {proof.holdouts}."
        )
    return tuple(remarks)


def _data(state: SessionState, folder: Path) -> dict[str, object]:
    plain: dict[str, object] = as_data(summary_of(state, folder))
    opened = state.opened
    tables = {
        "settings": opened.settings if opened else None, "versions": opened.versions if opened else {},
        "prepared_on": state.device, "preparation": state.preparation, "closed": state.closed, "limits": state.limits,
        "rounds_table": list(state.rounds.values()), "ideas_table": list(state.ideas.values()),
        "kernels_table": list(state.kernels.values()), "pinned": state.pinned, "pruned": state.pruned, "notes": state.notes,
    }  # fmt: skip
    return {**plain, **as_data(tables)}


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProblemError(f"{target} cannot be written ({error.strerror}): name another file with --output") from error
