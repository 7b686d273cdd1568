"""``espalier export``: a session's best kernel as a module, or the session as one file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.kernels import kernel_of, source_of
from engine.cli.output import as_data, show
from engine.cli.running import summary_of
from engine.domain import queries
from engine.domain.errors import ProblemError, SourceError
from engine.domain.state import Kernel, SessionState
from engine.journal import bundle, store
from engine.problem import catalog
from engine.report import export as exporting
from engine.report.text import duration_interval, times, tunables

_SUFFIX = {"module": ".py", "bundle": bundle.SUFFIX, "json": ".json"}


@click.command()
@click.argument("session")
@click.option("--format", "kind", type=click.Choice(list(_SUFFIX)), default="module", show_default=True,
              help="module: the best kernel as a ModelNew; bundle: the session as one file; json: its data.")  # fmt: skip
@click.option("--kernel", metavar="K", help="Another kernel than the best one, for a module.")
@click.option("--output", "-o", type=o.PATH, metavar="FILE", help="Default: a name made from the session's, here.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def export(session: str, kind: str, kernel: str | None, output: Path | None, force: bool) -> None:
    """Write what came of SESSION as a file that can be used or sent elsewhere."""
    folder = store.resolve(session)
    state = store.state_of(folder)
    chosen = _kernel(state, folder, kernel) if kind == "module" else None
    stem = folder.name if chosen is None else f"{queries.settings_of(state)[0]}_{chosen.id}"
    target = output or Path(f"{stem}{_SUFFIX[kind]}")
    if target.exists() and not force:
        raise ProblemError(f"{target} is there already: name another file with --output, or overwrite it with --force")
    if kind == "bundle":
        bundle.pack(folder, target)
    elif chosen is not None:
        _write(target, _module(state, folder, chosen))
    else:
        _write(target, json.dumps(_data(state, folder), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    show([f"{target} written"])


def _kernel(state: SessionState, folder: Path, name: str | None) -> Kernel:
    if name is not None:
        return kernel_of(state, name, folder)
    best = queries.incumbent(state)
    if best is None:
        raise SourceError(f"session {folder.name} has no verified kernel to export: name one with --kernel")
    return best


def _module(state: SessionState, folder: Path, kernel: Kernel) -> str:
    if state.opened is None or state.preparation is None or state.device is None:
        raise ProblemError(f"session {folder.name} has not been prepared yet: nothing can be exported from it")
    workload = catalog.workload_for(state.opened.problem, state.opened.settings.workload)
    given = exporting.Exported(
        state.opened.problem, workload, state.preparation.signature, state.device, source_of(folder, kernel),
        kernel.tunables, _remarks(state, folder, kernel),
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
            f"{times(ratio)} {base} (95% intervals), {kernel.contract.value} contract."
        )
    else:
        remarks.append(f"Problem {problem}, workload {workload}. It has not been verified on the session's device.")
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
