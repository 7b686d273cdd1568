"""How a command about a session concludes: the tree, where the session is, what to type next, and the exit status."""

from __future__ import annotations

from pathlib import Path

from engine.cli.exit_codes import BAD_INPUT, DONE, FAILED, INTERRUPTED, CommandExit, end
from engine.cli.output import show, show_json
from engine.cli.session_access import shell_name
from engine.domain import queries
from engine.domain.state import SessionState
from engine.report.facts.summary import summarise
from engine.report.text.lines import Line, Span, Tone, counted, fields, line, one_line
from engine.report.text.tree import evidence, heading, tree
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome, RoundEnded, SessionEnded


def print_session(state: SessionState, folder: Path, outcome: Outcome | None = None) -> None:
    """The tree, what its figures rest on, where the session is and what to type next."""
    session = ("session", Span(f"{folder.absolute()}{_status(state, outcome)}"))
    steps = [("next", Span(advice)) for advice in _next_steps(state, folder, outcome)]
    show([heading(state), "", *tree(state), "", *fields([*evidence(state), session, *steps])])
    if isinstance(outcome, AwaitingEngineer):
        show(["", *awaiting_lines(state)])


def awaiting_lines(state: SessionState) -> list[Line]:
    """The ideas that await a decision."""
    lines: list[Line] = []
    for idea in queries.pending_ideas(state):
        predicted = f", predicted {idea.text.predicted:g}×" if idea.text.predicted is not None else ""
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
            return f", awaiting you on {counted(len(ideas), 'idea')}"
        case AwaitingEngineer(paused=paused) if paused is not None:
            return f", paused: {paused}"
        case AwaitingEngineer():
            return ", awaiting an idea of yours"
        case _:
            return f", ended: {state.closed}" if state.closed is not None else ", open"


def _next_steps(state: SessionState, folder: Path, outcome: Outcome | None) -> list[str]:
    name = shell_name(folder)
    if isinstance(outcome, AwaitingEngineer) and outcome.calls:
        call = outcome.calls[0]
        return [
            f"espalier model prompts {name} {call}, then espalier model answer {name} {call} FILE, then espalier open {name}"
        ]
    if isinstance(outcome, AwaitingEngineer) and outcome.paused is not None and not outcome.ideas:
        return [f"espalier session resume {name}, then espalier open {name}"]
    if isinstance(outcome, AwaitingEngineer):
        return [f"espalier idea approve {name} [IDEA ...] or espalier idea reject {name} IDEA, then espalier open {name}"]
    if state.closed is None:
        return [f"espalier open {name}"]
    done = max(0, queries.last_round(state))
    lines = [f"espalier session limits {name} --rounds {done + 3}, then espalier open {name}: three more rounds"]
    if queries.incumbent(state) is not None:
        lines.insert(0, f"espalier export {name} --format module: the best kernel as a KernelBench module")
    return lines


def conclude(state: SessionState, folder: Path, outcome: Outcome, *, as_json: bool) -> None:
    """Print the result of a search and leave with its exit status."""
    prepared = state.preparation
    if prepared is not None and not prepared.gate.verifiable and state.opened and not state.opened.settings.accept_unverifiable:
        raise CommandExit(
            BAD_INPUT, f"{state.opened.problem.name} is {state.closed}; --accept-unverifiable searches all the same"
        )
    if isinstance(outcome, EngineStopped):
        (work, reason), *more = outcome.reasons.items()
        others = f" and {len(more)} more" if more else ""
        name = shell_name(folder)
        advice = f"nothing is lost, `espalier open {name}` goes on once that is put right"
        if work in state.called_off:
            advice = f"`espalier idea add {name}` writes an idea of yours, `espalier open {name}` asks again"
        raise CommandExit(BAD_INPUT, f"{work} could not be done{others}: {one_line(reason)}; {advice}")
    if as_json:
        show_json(summarise(state, folder))
    else:
        print_session(state, folder, outcome)
    if isinstance(outcome, SessionEnded | RoundEnded):
        end_by_incumbent(state)


def end_by_incumbent(state: SessionState) -> None:
    """Leave with the exit status of a search that is over: FAILED without a verified kernel."""
    end(FAILED if queries.incumbent(state) is None else DONE)


def interrupted(folder: Path) -> CommandExit:
    """The exit of an interrupted search."""
    return CommandExit(INTERRUPTED, f"interrupted; nothing is lost: `espalier open {shell_name(folder)}` goes on")
