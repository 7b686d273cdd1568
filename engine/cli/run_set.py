"""``espalier run P1 P2 ...``: one budget over several problems, headless."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from engine.cli.drive import ProgressPrinter, drive, run_session, run_to_end
from engine.cli.exit_codes import FAILED, INTERRUPTED, CommandExit, end
from engine.cli.output import as_data, show, show_json
from engine.domain import queries
from engine.domain.errors import ProblemError
from engine.domain.state import SessionState
from engine.domain.strategy.worth import Standing
from engine.problem import catalog
from engine.report.facts.summary import summarise
from engine.report.text.lines import Line, Span, Tone, counted, line, one_line, table, times
from engine.report.text.shell import shell_name
from engine.session.factory import NewSession
from engine.session.live import LiveSession
from engine.session.outcome import Outcome
from engine.session.problem_set import Member, ProblemSet, SetBudget, member_folders, restored

_ONE_ONLY = {"seeds": "--seed-kernel", "mode": "--mode", "pause_above_usd": "--pause-above-usd",
             "pause_before_round": "--pause-before-round"}  # fmt: skip


def named_problems(given: Sequence[str]) -> list[str]:
    """The problems that the arguments name: a folder of problems stands for those in it."""
    found: list[str] = []
    for name in given:
        try:
            catalog.find(name)
            found.append(name)
        except ProblemError:
            inside = _inside(Path(name).expanduser())
            if not inside:
                raise
            found += inside
    return list(dict.fromkeys(found))


def _inside(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    names: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")) or not (path.is_dir() or path.suffix == ".py"):
            continue
        try:
            catalog.find(str(path))
        except ProblemError:
            continue
        names.append(str(path))
    return names


def check_options(given: Mapping[str, Any]) -> None:
    """Raises UsageError for options that concern one session."""
    wrong = next((option for name, option in _ONE_ONLY.items() if given[name]), None)
    if wrong is not None:
        raise click.UsageError(f"{wrong} needs a single problem: several run on autopilot, each in a session of its own")


def run_set(requests: Sequence[NewSession], given: Mapping[str, Any], rounds: int | None) -> None:
    """Spend one budget on several problems. ``rounds``: the most rounds of each session."""
    settings = requests[0].settings
    share = settings.ideas * settings.branch
    kernels = given["kernels"] or (given["rounds"] * share + 1) * len(requests)
    budget = SetBudget(kernels, given["seconds"], given["budget_tokens"], given["budget_usd"])
    tag = f"{requests[0].device} {settings.workload} {settings.dialect}"
    folders = member_folders([one.problem for one in requests], given["folder"], tag)
    members = [restored(_limited(one, rounds), folder) for one, folder in zip(requests, folders, strict=True)]
    problems = ProblemSet(members, budget, share)

    async def work(printer: ProgressPrinter) -> str:
        if not given["headless"]:
            printer.keep(partial(live_table, problems))

        async def run_live(live: LiveSession, from_seq: int) -> Outcome:
            _, outcome = await run_session(live, run_to_end, printer, from_seq)
            return outcome

        def turn_over(member: Member) -> None:
            if member.stopped:
                printer.step(f"{member.name} failed: {member.stopped}")
            printer.step(f"{member.name}: {_best(member.state)}; {problems.spent().kernels} of {kernels} kernels in all")

        try:
            return await problems.run(run_live, printer.step, turn_over)
        finally:
            printer.keep(None)

    try:
        why = drive(work)
    except KeyboardInterrupt:
        raise CommandExit(INTERRUPTED, "interrupted; the same command continues") from None
    _conclude(problems, why, as_json=given["as_json"])


def _limited(request: NewSession, rounds: int | None) -> NewSession:
    return replace(request, settings=replace(request.settings, limits=replace(request.settings.limits, rounds=rounds)))


def _conclude(problems: ProblemSet, why: str, *, as_json: bool) -> None:
    if as_json:
        fields = [_fields(problems, member) for member in problems.members]
        show_json({"problems": fields, "budget": problems.budget, "spent": problems.spent(), "reason": why})
    else:
        advice = "to continue, repeat the command with a larger --kernels, --time or --budget-usd"
        show([*set_table(problems), "", f"{why}; {advice}"])
    if any(queries.incumbent(member.state) is None for member in problems.members):
        end(FAILED)


def _fields(problems: ProblemSet, member: Member) -> Mapping[str, object]:
    standing = next(one for at, one in enumerate(problems.standings()) if problems.members[at] is member)
    expected = math.exp(standing.worth) if math.isfinite(standing.worth) else None
    return {**as_data(summarise(member.state, member.folder)), "problem": member.name, "reason": standing.ended,
            "expected_gain": None if standing.ended else expected}  # fmt: skip


def set_table(problems: ProblemSet) -> list[Line]:
    """One row a problem: its session, kernels, best speedup, and what its next kernel is expected to gain or why it ended."""
    rows: list[list[Span]] = []
    for member, standing in zip(problems.members, problems.standings(), strict=True):
        state = member.state
        best = queries.incumbent(state)
        ratio = queries.speedup(state, best) if best is not None else None
        tone = Tone.GOOD if ratio is not None and ratio.low > 1.0 else Tone.PLAIN
        gain = "" if math.isinf(standing.worth) else f"next kernel {math.exp(standing.worth):.3f}×"
        size = f"{len(queries.verified(state))} of {counted(len(state.kernels), 'kernel')} verified"
        rows.append([
            Span(member.name, Tone.STRONG), Span(_best(member.state), tone), Span(size, Tone.FAINT),
            Span(one_line(standing.ended) if standing.ended else gain, Tone.WARN if member.stopped else Tone.FAINT),
            Span(shell_name(member.folder), Tone.FAINT),
        ])  # fmt: skip
    return table(rows)


def live_table(problems: ProblemSet, room: int) -> list[Line]:
    """The table while the budget is spent, at most ``room`` lines: what is spent, then one row a problem.

    Where there are more problems than lines, the one under way is shown, then those whose next kernel is worth most.
    """
    standings = problems.latest
    under_way = [at for at, member in enumerate(problems.members) if member.live is not None]
    by_worth = sorted(range(len(standings)), key=lambda at: (bool(standings[at].ended), -standings[at].worth))
    order = list(dict.fromkeys([*under_way, *by_worth]))
    places = max(0, room - 1)
    left_out = len(order) - places if len(order) > places else 0
    shown = sorted(order[: places - 1] if left_out else order)
    rows = [_live_row(problems.members[at], standings[at]) for at in shown]
    more = [line(Span(f"… {counted(len(order) - len(shown), 'more problem')}", Tone.FAINT))] if left_out and places else []
    tried = sum(len(member.now.kernels) for member in problems.members)
    going = sum(1 for one in standings if not one.ended)
    head = f"{tried} of {counted(problems.budget.kernels, 'kernel')} tried, {going} of {counted(len(order), 'problem')} go on"
    return [line(Span(head, Tone.STRONG)), *table(rows), *more][:room]


def _live_row(member: Member, standing: Standing) -> list[Span]:
    state = member.now
    best = queries.incumbent(state)
    ratio = queries.speedup(state, best) if best is not None else None
    if member.live is not None:
        what = Span("under way", Tone.GOOD)
    elif standing.ended:
        what = Span(one_line(standing.ended), Tone.WARN if member.stopped else Tone.FAINT)
    else:
        what = Span("waits" if math.isinf(standing.worth) else f"next kernel {math.exp(standing.worth):.3f}×", Tone.FAINT)
    return [
        Span(member.name, Tone.STRONG), Span(_best(state), Tone.GOOD if ratio is not None and ratio.low > 1.0 else Tone.PLAIN),
        Span(f"{len(queries.verified(state))} of {counted(len(state.kernels), 'kernel')} verified", Tone.FAINT), what,
    ]  # fmt: skip


def _best(state: SessionState) -> str:
    best = queries.incumbent(state)
    ratio = queries.speedup(state, best) if best is not None else None
    if best is None or ratio is None:
        return "no verified kernel"
    return f"{best.id} {times(ratio)} {queries.ranking_baseline(state)}"
