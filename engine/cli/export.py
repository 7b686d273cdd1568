"""``espalier export``: the best kernel as a module, a report, training data, or the whole session as one file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from engine.api import kernel_export
from engine.cli import options as o
from engine.cli.exit_codes import DOUBTED, CommandExit
from engine.cli.output import STDOUT, as_data, output_file, refuse_json_on_stdout, show, show_json, write_output
from engine.cli.session_access import read_entries, read_state
from engine.domain import corroboration, queries
from engine.domain.errors import KernelCodeError, ProblemError
from engine.domain.events import SessionOpened
from engine.domain.state import Kernel, SessionState
from engine.export import bundle, formats, rewards, training
from engine.export.attempts import RecordedSession
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.problem import catalog
from engine.report.facts.summary import summarise
from engine.report.page import content, render
from engine.report.text.lines import counted, file_stem
from engine.report.text.tree import outcome

_TRAINING = ("sft", "pairs", "jsonl")
_FORMATS = {"kernelbench": ".py", "flashinfer": "_flashinfer", "sol": ".sol.json", "kernelbot": "_submission.py"}
_OF_A_KERNEL = ("module", *_FORMATS)
_BUILT = tuple(name for name in _FORMATS if name != "flashinfer")
"""Formats of kernels that build; a trace of FlashInfer-Bench can tell that one does not."""
_SUFFIX = {"module": ".py", **_FORMATS, "report": ".html", "bundle": bundle.SUFFIX, "json": ".json"} | {
    kind: f".{kind}.jsonl" if kind != "jsonl" else ".jsonl" for kind in _TRAINING
}
_MARKDOWN = (".md", ".markdown")
_ENDINGS = {
    (".py",): ("module", "kernelbench", "kernelbot"), (".html", *_MARKDOWN): ("report",), bundle.SUFFIXES: ("bundle",),
    (".json",): ("json", "sol"), (".jsonl",): ("jsonl", "sft", "pairs"),
}  # fmt: skip
"""How files of a format are named. Any other ending fits every format but a bundle."""
_NO_TEXT = {"bundle": f"file that ends in {', '.join(bundle.SUFFIXES)}", "flashinfer": "folder"}
_REWARDS = ", ".join(f"{kind.value} {value:g}" for kind, value in rewards.FAILURES.items())
_HELP = f"""Write a result of SESSION as a file.

    \b
    module  the best kernel as one importable file: a ModelNew, an operator of torch.library,
            its own test (--test) and its own benchmark (--bench)
    report  one self-contained page: tree, charts, ideas with their gains, decisions,
            conditions, the winner's code (HTML; Markdown where FILE ends in .md)
    bundle  the session as one file (.tar.gz, .tgz or .tar) that `session import`,
            `open` and `replay` take
    json    the session's data

    \b
    Kernels for other projects:
    kernelbench  the same as module
    flashinfer   a folder with a solution and its trace, as a FlashInfer trace set has them
    sol          a solution of SOL-ExecBench
    kernelbot    a submission.py

    \b
    Training data, from one session or several:
    sft     chats that ended in a verified kernel ("messages"), one per line
    pairs   two answers to one idea ("prompt", "chosen", "rejected"), one per line
    jsonl   every attempt at every kernel, failures included, one per line

    A row's reward is ln(speedup over the parent), or over the baseline if no parent was measured, and never below
    {rewards.LEAST_MEASURED:g}. A failure has a constant reward ({_REWARDS}). The reward is null if it is unknown, for a
    quarantined kernel, and for one that is not corroborated; the latter two are in jsonl only.

    A module of such a kernel says so at its top, and the exit status is {DOUBTED}.
    """


@click.command(help=_HELP)
@click.argument("sessions", type=o.SESSION, metavar="SESSION...", nargs=-1, required=True)
@click.option("--format", "kind", type=o.KnownValue(list(_SUFFIX)), default="module", show_default=True, help="See above.")
@click.option("--kernel", type=o.KERNEL, metavar="K", help="The kernel of a module. Default: the incumbent.")
@click.option("--licence", type=o.NAME, default="unspecified", show_default=True, metavar="TEXT",
              help="Licence of the code and texts in training data, e.g. an SPDX name.")  # fmt: skip
@click.option("--allow-licence", "allowed", type=o.PROBLEM, multiple=True, metavar="PROBLEM",
              help="Export training data of PROBLEM although its licence forbids training; repeatable.")  # fmt: skip
@click.option("--output", "-o", type=o.OUTPUT, metavar="FILE",
              help="Default: named after the session, in the working folder. -: standard output, for text.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@o.json_option
def export(
    sessions: tuple[str, ...],
    kind: str,
    kernel: str | None,
    licence: str,
    allowed: tuple[str, ...],
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """See ``_HELP``."""
    _refuse_unused(kind)
    if output is not None:
        _require_fitting_name(output, kind)
        refuse_json_on_stdout(output, as_json)
    folders = [store.resolve(session) for session in dict.fromkeys(sessions)]
    rows: int | None = None
    kept: Kernel | None = None
    if kind in _TRAINING:
        _require_licences(folders, allowed)
        target, rows = _export_training_data(folders, kind, licence, output, force)
    elif len(folders) > 1:
        raise ProblemError(f"--format {kind} takes one session; only {', '.join(_TRAINING)} take several")
    else:
        target, kept = _export_session(folders[0], kind, kernel, output, force)
    doubted = kept is not None and corroboration.is_doubted(kept)
    if as_json:
        where = [str(folder.absolute()) for folder in folders]
        verdict = _corroboration_fields(kept) if kept is not None else {}
        show_json({"file": str(target.absolute()), "format": kind, "sessions": where, "rows": rows, **verdict})
    elif target != STDOUT:
        counts = f": {counted(rows, 'row')} from {counted(len(folders), 'session')}" if rows is not None else ""
        show([f"wrote {target}{counts}"])
    if kept is not None and doubted:
        doubts = "; ".join(corroboration.of_kernel(kept))
        named = target if target != STDOUT else "the file"
        raise CommandExit(
            DOUBTED, f"the time of {kept.id} is no result ({outcome(kept)}): {doubts}; {named} says so at its top"
        )


def _require_fitting_name(output: Path, kind: str) -> None:
    """Raises ProblemError if the file is named as one of another format: other programs would not read it.

    Standard output fits what is one text file.
    """
    if output == STDOUT and kind in _NO_TEXT:
        raise ProblemError(f"--format {kind} writes no text: name a {_NO_TEXT[kind]} with --output instead of -")
    for endings, kinds in _ENDINGS.items():
        if output.name.lower().endswith(endings) and kind not in kinds:
            raise ProblemError(
                f"{output} ends as a {kinds[0]} does: add --format {kinds[0]}, or name a file that ends in {_SUFFIX[kind]}"
            )


def _refuse_unused(kind: str) -> None:
    """Raises ProblemError for an option that the format has no use for."""
    uses = {
        "kernel": ("--kernel", _OF_A_KERNEL),
        "licence": ("--licence", _TRAINING),
        "allowed": ("--allow-licence", _TRAINING),
    }
    for parameter, (option, kinds) in uses.items():
        if kind not in kinds and o.was_typed(parameter):
            raise ProblemError(f"{option} has no effect on --format {kind}: leave it out, or choose one of {', '.join(kinds)}")


def _corroboration_fields(kernel: Kernel) -> dict[str, object]:
    return {
        "kernel": kernel.id, "status": corroboration.status(kernel), "corroborated": corroboration.is_corroborated(kernel),
        "quarantined": corroboration.is_quarantined(kernel), "doubts": corroboration.of_kernel(kernel),
    }  # fmt: skip


def _export_session(
    folder: Path, kind: str, kernel: str | None, output: Path | None, force: bool
) -> tuple[Path, Kernel | None]:
    """The file, and the kernel of a module."""
    state = read_state(folder)
    chosen = kernel_export.choose(state, folder, kernel) if kind in _OF_A_KERNEL else None
    if chosen is not None and kind in _BUILT:
        kernel_export.require_build(chosen)
    stem = folder.name if chosen is None else file_stem(f"{queries.problem_and_workload(state)[0]}_{chosen.id}")
    usual = f"{stem}{_SUFFIX[kind]}"
    target = output_file(output, usual, force, is_folder=kind == "flashinfer")
    name = usual if target == STDOUT else target.name
    if kind == "bundle":
        bundle.pack(folder, target)
    elif kind == "report":
        write_output(target, _report_text(folder, target))
    elif chosen is not None and kind in ("flashinfer", "sol", "kernelbot"):
        _write_format(kernel_export.for_format(state, folder, chosen, name), kind, target)
    elif chosen is not None:
        write_output(target, kernel_export.module_text(state, folder, chosen, name))
    else:
        write_output(target, json.dumps(_session_data(state, folder), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return target, chosen


def _require_licences(folders: list[Path], allowed: tuple[str, ...]) -> None:
    """Raises ProblemError for a session on a problem whose licence forbids training and that ``allowed`` does not name."""
    for folder in folders:
        opened = store.state_of(folder).opened
        found = opened.problem.origin_format if opened is not None else None
        if opened is None or found is None or found.licence is None or not found.licence.forbids_training:
            continue
        if opened.problem.name not in allowed:
            raise ProblemError(
                f"{folder.name}: the licence of {opened.problem.name} ({found.licence.name}, {found.licence.file}) forbids "
                f"training: leave the session out, or name the problem with --allow-licence {opened.problem.name}"
            )


def _export_training_data(folders: list[Path], kind: str, licence: str, output: Path | None, force: bool) -> tuple[Path, int]:
    stem = folders[0].name if len(folders) == 1 else "sessions"
    target = output_file(output, f"{stem}{_SUFFIX[kind]}", force)
    rows = list(training.lines(kind, (_recorded_session(folder, licence) for folder in folders)))
    if not rows:
        raise KernelCodeError(f"nothing to export with --format {kind} in {', '.join(folder.name for folder in folders)}")
    write_output(target, "".join(f"{row}\n" for row in rows))
    return target, len(rows)


def _recorded_session(folder: Path, licence: str) -> RecordedSession:
    entries = read_entries(folder)
    opened = entries[0].event if entries else None
    shipped = isinstance(opened, SessionOpened) and opened.problem.origin in catalog.shipped_names()
    return RecordedSession(folder.name, entries, Blobs(folder).text, licence, shipped)


def _report_text(folder: Path, target: Path) -> str:
    page = content.page(folder.name, journal.read(folder).entries, Blobs(folder).text)
    return render.markdown(page) if target.suffix.lower() in _MARKDOWN else render.html(page)


def _write_format(given: formats.FormatExport, kind: str, target: Path) -> None:
    """One file, or for ``flashinfer`` a folder with the layout of a trace set."""
    if kind == "sol":
        write_output(target, formats.sol_solution(given))
    elif kind == "kernelbot":
        write_output(target, formats.kernelbot_submission(given))
    else:
        entry = given.declared("flashinfer", "sol-execbench").entry
        stem = file_stem(entry)
        rows = [(target / "solutions" / f"{stem}_{given.kernel.id}.json", formats.flashinfer_solution(given))]
        if not corroboration.is_doubted(given.kernel):
            rows.append((target / "traces" / f"{stem}.jsonl", formats.flashinfer_traces(given)))
        for place, text in rows:
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ProblemError(f"{place.parent} cannot be made ({error.strerror}): choose another with --output") from error
            write_output(place, text)


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
