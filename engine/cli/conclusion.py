"""How a command that ran a session concludes: the tree, where the session stands, what to do next, the exit status."""

from __future__ import annotations

from pathlib import Path

from engine.cli.exit_codes import AWAITING, BAD_INPUT, DOUBTED, FAILED, INTERRUPTED, CommandExit, end
from engine.cli.output import show, show_json, terminal_width
from engine.cli.verbosity import quiet
from engine.domain import columns, corroboration, queries, races, rules, stopping
from engine.domain.state import SessionState
from engine.domain.work import WorkKey, WorkKind
from engine.journal.lock import is_written
from engine.journal.shipped import is_shipped
from engine.report.facts.summary import summarise
from engine.report.text.lines import Line, Span, Tone, counted, fields, line, one_line, ratio, times
from engine.report.text.progress import failed_call
from engine.report.text.shell import quoted, shell_name
from engine.report.text.tree import evidence, heading, tree
from engine.report.text.work import work_words
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome, RoundEnded

_BY_PROVIDER = frozenset({WorkKind.PROPOSE, WorkKind.IMPLEMENT, WorkKind.REPAIR})
"""Work that waits for a proposer or a writer."""
_LIFTED = {"seconds": "--time", "kernels": "--kernels", "plateau": "--plateau", "light": "--sol"}
"""Field of ``Limits`` → the option of ``session limits`` that changes it."""


def print_session(state: SessionState, folder: Path, outcome: Outcome | None = None, bundle: Path | None = None) -> None:
    """The tree, its evidence, where the session stands and what to do next. ``bundle``: the file it was unpacked from."""
    session = ("session", Span(f"{(bundle or folder).absolute()}{_status(state, outcome)}"))
    imports = [f"espalier open {quoted(str(bundle))}: import and resume"]
    advice = imports if bundle is not None else next_steps(state, folder, outcome)
    steps = [] if quiet() else [("next", Span(text)) for text in advice]
    show([heading(state), "", *tree(state, width=terminal_width()), "", *fields([*evidence(state), session, *steps])])
    if isinstance(outcome, AwaitingEngineer) and outcome.ideas:
        show(["", *awaiting_lines(state)])


def awaiting_lines(state: SessionState) -> list[Line]:
    """The ideas awaiting approval."""
    lines: list[Line] = []
    for idea in queries.pending_ideas(state):
        predicted = f", predicted {ratio(idea.text.predicted)}×" if idea.text.predicted is not None else ""
        parent = f" on {idea.parent}" if idea.parent else ""
        lines.append(line("  ", Span(f"{idea.id}{parent} {one_line(idea.text.title)}", Tone.STRONG)))
        lines.append(line(Span(f"      {idea.text.category}{predicted}: {one_line(idea.text.rationale)}", Tone.FAINT)))
    return lines


def _status(state: SessionState, outcome: Outcome | None) -> str:
    match outcome:
        case RoundEnded(number):
            return f", round {number} done"
        case AwaitingEngineer(calls=calls) if calls:
            return f", awaiting your reply to {counted(len(calls), 'prompt')}"
        case AwaitingEngineer(ideas) if ideas:
            return f", {counted(len(ideas), 'idea')} awaiting approval"
        case AwaitingEngineer(paused=paused) if paused is not None:
            return f", paused: {paused}"
        case AwaitingEngineer():
            return ", awaiting an idea from you"
        case _:
            return f", ended: {state.closed}" if state.closed is not None else ", open"


def next_steps(state: SessionState, folder: Path, outcome: Outcome | None) -> list[str]:
    """What the engineer can do next, as commands."""
    name = shell_name(folder)
    resume = f"then espalier open {name}"
    if is_shipped(folder):
        return [*_best_kernel_steps(state, name), f"espalier fork {name}: continue from a copy"]
    if outcome is None and is_written(folder):
        decision = [_decision(name)] if queries.pending_ideas(state) and state.closed is None else []
        return [*_best_kernel_steps(state, name), *decision, f"espalier follow {name}: watch it; another process has it open"]
    if isinstance(outcome, AwaitingEngineer) and outcome.calls:
        call = outcome.calls[0]
        return [f"espalier model prompts {name} {call}, then espalier model answer {name} {call} FILE, {resume}"]
    if isinstance(outcome, AwaitingEngineer) and outcome.paused is not None and not outcome.ideas:
        return [f"espalier session resume {name}, {resume}"]
    if queries.pending_ideas(state) and state.closed is None:
        return [f"{_decision(name)}, {resume}"]
    if isinstance(outcome, AwaitingEngineer):
        return [f'espalier idea add {name} "TITLE" --approve, {resume}']
    if state.closed is None:
        return [f"espalier open {name}: resume the search"]
    undecided = list(races.undecided_races(state))
    again = f"espalier kernel race {name}, {resume}: repeats {counted(len(undecided), 'undecided race')} with twice the samples"
    more = f"espalier kernel seed {name} FILE, {resume}: from a kernel of yours"
    if parked := queries.parked_ideas(state):
        more = f"espalier idea approve {name} {parked[0].id}, {resume}: {counted(len(parked), 'parked idea')}"
    if stopping.may_go_on(state):
        options = "".join(f" {_LIFTED[limit]} none" for limit in stopping.limits_reached(state))
        rounds = queries.rounds_done(state) + 3
        more = f"espalier session limits {name} --rounds {rounds}{options}, {resume}: three more rounds"
    advice = [*([again] if undecided else []), *_remeasurement(state, name, resume), *_given_up(state, name, resume), more]
    return [*_best_kernel_steps(state, name), *_dispatch_step(state, name), *advice]


def _decision(name: str) -> str:
    return f"espalier idea approve {name} [IDEA ...] or espalier idea reject {name} IDEA"


def _dispatch_step(state: SessionState, name: str) -> list[str]:
    """On a suite, the dispatch that its kernels' times promise."""
    found = columns.combination(state)
    if found is None:
        return []
    promised = f"{' and '.join(found.names)} by shape, {ratio(found.promise)}× of {state.incumbent} as measured"
    return [f"espalier kernel dispatch {name}, then espalier open {name}: {promised}"]


def _remeasurement(state: SessionState, name: str, resume: str) -> list[str]:
    """The command for the best kernel that claims more than the incumbent and that other work kept from being corroborated."""
    best = queries.incumbent(state)
    leads = queries.speedup(state, best) if best is not None else None
    for kernel in queries.ranked(state):
        claimed = queries.speedup(state, kernel)
        unsure = corroboration.status(kernel) == corroboration.NOT_CORROBORATED
        if unsure and claimed is not None and (leads is None or claimed.value > leads.value):
            again = f"espalier kernel remeasure {name} {kernel.id}, {resume}"
            return [f"{again}: on an idle machine, as it claims {times(claimed)}"]
    return []


def _given_up(state: SessionState, name: str, resume: str) -> list[str]:
    """The command for the first kernel that failed because Espalier was killed during its work."""
    found = next(filter(rules.is_given_up, state.kernels.values()), None)
    if found is None or found.failure is None:
        return []
    return [f"espalier kernel remeasure {name} {found.id}, {resume}: {one_line(found.failure.reason)}"]


def _best_kernel_steps(state: SessionState, name: str) -> list[str]:
    best = queries.incumbent(state)
    if best is None:
        return []
    seen = "--code: its code" if best.parent is None else "--diff: how it differs from its parent"
    return [
        f"espalier export {name} --format module: the best kernel as a KernelBench module",
        f"espalier kernel show {name} {best.id} {seen}",
    ]


def conclude(state: SessionState, folder: Path, outcome: Outcome, *, as_json: bool) -> None:
    """Print the result of a search and leave with its exit status."""
    prepared = state.preparation
    if prepared is not None and not prepared.gate.verifiable and state.opened and not state.opened.settings.accept_unverifiable:
        raise CommandExit(BAD_INPUT, f"{state.opened.problem.name} is {state.closed}; --accept-unverifiable searches anyway")
    if isinstance(outcome, EngineStopped):
        failure = stopped(state, folder, outcome)
        if as_json and failure.status == AWAITING:
            show_json(summarise(state, folder))
        raise failure
    if as_json:
        show_json(summarise(state, folder))
    else:
        print_session(state, folder, outcome)
    end_by_outcome(state, outcome)


def stopped(state: SessionState, folder: Path, outcome: EngineStopped) -> CommandExit:
    """The exit of a search whose engine could not continue: AWAITING where a proposer or writer failed, else BAD_INPUT."""
    (work, reason), *more = outcome.reasons.items()
    others = f" and {len(more)} more" if more else ""
    name = shell_name(folder)
    advice = f"resume with `espalier open {name}` once fixed"
    if work in state.called_off:
        advice = f"`espalier idea add {name}` adds an idea of yours, `espalier open {name}` repeats the call"
    status = AWAITING if all(_is_providers(key) for key in outcome.reasons) else BAD_INPUT
    call = None if quiet() else failed_call(state, str(work), reason)
    why = f", see {call} above" if call is not None else f": {one_line(reason)}"
    return CommandExit(status, f"{work_words(work)}{others} failed{why}; {advice}")


def _is_providers(work: WorkKey) -> bool:
    return work.kind in _BY_PROVIDER


def end_by_outcome(state: SessionState, outcome: Outcome | None) -> None:
    """Leave with the exit status of a search: AWAITING where the engineer must act; without an incumbent DOUBTED if there are
    only doubted kernels, FAILED if there is none."""
    if isinstance(outcome, AwaitingEngineer):
        end(AWAITING)
    if queries.incumbent(state) is None:
        end(DOUBTED if corroboration.doubted(state) else FAILED)


def interrupted(folder: Path) -> CommandExit:
    """The exit of an interrupted search."""
    return CommandExit(INTERRUPTED, f"interrupted; resume with `espalier open {shell_name(folder)}`")
