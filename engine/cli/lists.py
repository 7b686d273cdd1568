"""``espalier problems`` and ``espalier bank``: what a session can start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import show, show_json, terminal_width
from engine.domain.model import Dialect, Number, Problem
from engine.ideas.playbook import available
from engine.journal import bank as banks
from engine.journal import store
from engine.problem import catalog
from engine.report.text.lines import Span, Tone, counted, fitted, shortened, times


@click.command()
@o.json_option
def problems(as_json: bool) -> None:
    """List the problems that ship. A folder with a reference.py, or any KernelBench-format file, works as well."""
    shipped = [_shipped_problem(problem) for problem in catalog.shipped()]
    if as_json:
        show_json({"problems": shipped})
        return
    rows = [
        [
            Span(one.name, Tone.STRONG), Span(one.title), Span(_shapes(one), Tone.FAINT),
            Span(", ".join(f"{name}: {counted(n, 'idea')}" for name, n in one.ideas.items()), Tone.FAINT),
        ]
        for one in shipped
    ]  # fmt: skip
    show(fitted(rows, terminal_width(), wide=1, least=24, spare=(3, 2)))


@dataclass(frozen=True, slots=True)
class ShippedProblem:
    """A shipped problem in the list."""

    name: str
    title: str
    workloads: Mapping[str, Mapping[str, Number]]
    ideas: Mapping[str, int]
    """Dialect → ideas of the playbook that have an implementation in it."""
    suites: Mapping[str, tuple[str, ...]]
    """Suite → the workloads that ``--suite`` judges together."""


def _shapes(one: ShippedProblem) -> str:
    """The workloads beside the suites, and the suites with their sizes: ``full, small; suites models (12), cores (8)``."""
    in_suites = {name for names in one.suites.values() for name in names}
    alone = ", ".join(name for name in one.workloads if name not in in_suites) or ", ".join(one.workloads)
    suites = ", ".join(f"{name} ({len(names)})" for name, names in one.suites.items())
    return f"{alone}; suites {suites}" if suites else alone


def _shipped_problem(problem: Problem) -> ShippedProblem:
    folder = catalog.folder(problem)
    counts = {d.value: available(folder, d).ideas if folder else 0 for d in (Dialect.CPP, Dialect.CUDA, Dialect.TRITON)}
    return ShippedProblem(problem.name, problem.title, {w.name: w.settings for w in problem.workloads}, counts, problem.suites)


@click.command()
@click.option("--problem", "name", type=o.PROBLEM, metavar="NAME", help="Only kernels of this problem.")
@o.json_option
def bank(name: str | None, as_json: bool) -> None:
    """List verified kernels of all sessions, best first: those whose time is corroborated and measured in several process
    pairs.

    `kernel seed` and `run --seed-kernel` take one as SESSION:K.
    """
    known = banks.banked_kernels()
    kernels = [entry for entry in known if name is None or entry.problem == name]
    if as_json:
        show_json({"kernels": [_fields(entry) for entry in kernels]})
    else:
        rows = fitted([_bank_row(entry) for entry in kernels], terminal_width(), wide=5, least=24, spare=(4, 3, 1))
        show(rows or [_none_message(name, {entry.problem for entry in known})])
    if fault := store.root_fault():
        raise CommandExit(BAD_INPUT, fault)


def _none_message(name: str | None, problems: set[str]) -> str:
    if name is None or not problems:
        return "no verified kernel yet: `espalier run softmax` searches for one"
    return f"no verified kernel of {name!r} yet: the bank has kernels of {', '.join(sorted(problems))}"


def _fields(entry: banks.BankEntry) -> dict[str, object]:
    own = {field: getattr(entry, field) for field in entry.__dataclass_fields__}
    corroborated = {"corroborated": True, "quarantined": False}
    return {**own, **corroborated, "device": {"name": entry.device}, "seed": _seed_name(entry)}


def _seed_name(entry: banks.BankEntry) -> str:
    return f"{store.short_name(entry.session)}:{entry.kernel}"


def _bank_row(entry: banks.BankEntry) -> list[Span]:
    return [
        Span(_seed_name(entry), Tone.STRONG),
        Span(f"{entry.problem} {entry.workload}"),
        Span(f"{times(entry.speedup)} {entry.baseline}", Tone.GOOD if entry.speedup.low > 1.0 else Tone.PLAIN),
        Span(f"{entry.dialect.value}, {entry.contract.value}", Tone.FAINT),
        Span(entry.device, Tone.FAINT),
        Span(shortened(entry.idea, _IDEA)),
        Span(f"accepted in spite of: {'; '.join(entry.doubts)}" if entry.doubts else "", Tone.WARN),
    ]


_IDEA = 48
"""Columns for the title of an idea. ``kernel show`` has all of it and the tunables."""
