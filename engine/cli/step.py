"""``espalier open`` and ``espalier step``: a session goes on where it stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.conclusion import awaiting_lines, conclude, end_by_incumbent, interrupted, print_session
from engine.cli.drive import ProgressPrinter, RunSession, drive, run_round, run_round_approving, run_session, run_to_end
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import as_data, show, show_json
from engine.cli.session_access import read_state, session_argument, shell_name
from engine.cli.ui import open_ui
from engine.domain import commands as c
from engine.domain import queries
from engine.domain.state import SessionState
from engine.journal import store
from engine.report.facts.summary import summarise
from engine.session.devices import checked_device
from engine.session.factory import resume
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome


@click.command("open")
@session_argument
@click.option("--device", metavar="cpu|cuda:N", help="Go on there; default: where it ran before.")
@click.option(
    "--mode", type=o.ApprovalMode(), metavar="ask|ask:SECONDS|autopilot", help="Change who approves ideas, then go on."
)
@click.option("--headless", is_flag=True, help="No screen: progress lines, and the tree at the end.")
@o.json_option
def open_session(session: str, device: str | None, mode: str | None, headless: bool, as_json: bool) -> None:
    """Go on with SESSION: its name or its folder. Without a screen, to its end or to a decision of yours."""
    folder = store.resolve(session)
    if not headless and not as_json and open_ui("open", folder):
        return
    state = read_state(folder)
    if state.closed is not None and mode is None:
        if as_json:
            show_json(summarise(state, folder))
        else:
            print_session(state, folder)
        end_by_incumbent(state)
        return

    async def run(live: LiveSession) -> Outcome:
        if mode is not None and mode != str(live.state.mode):
            await live.submit(c.SetMode(mode))
        return await run_to_end(live)

    state, outcome = _run_resumed(folder, device, state, run)
    conclude(state, folder, outcome, as_json=as_json)


@click.command()
@session_argument
@click.option("--ask", is_flag=True, help="Stop where ideas await a decision, and print them.")
@click.option("--device", metavar="cpu|cuda:N", help="Go on there; default: where it ran before.")
@o.json_option
def step(session: str, ask: bool, device: str | None, as_json: bool) -> None:
    """One round of SESSION, headless; what is undecided is approved, unless --ask.

    A session that its own limit of rounds has ended gets one more.
    """
    folder = store.resolve(session)
    state = read_state(folder)

    async def run(live: LiveSession) -> Outcome:
        await _allow_one_more_round(live, folder)
        return await (run_round(live) if ask else run_round_approving(live))

    after, outcome = _run_resumed(folder, device, state, run)
    if not as_json or isinstance(outcome, EngineStopped):
        conclude(after, folder, outcome, as_json=False)
        return
    stop = outcome if isinstance(outcome, AwaitingEngineer) else AwaitingEngineer(())
    awaiting = {"awaiting": list(stop.ideas), "prompts": list(stop.calls), "paused": stop.paused}
    show_json({**as_data(summarise(after, folder)), **awaiting})
    if isinstance(outcome, AwaitingEngineer):
        show(awaiting_lines(after), err=True)
    end_by_incumbent(after)


async def _allow_one_more_round(live: LiveSession, folder: Path) -> None:
    state = live.state
    rounds = state.limits.rounds
    done = sum(1 for r in state.rounds.values() if r.closed and r.number > 0)
    if state.closed is not None and rounds is not None and done >= rounds:
        await live.submit(c.SetLimits(replace(state.limits, rounds=done + 1)))
    if live.state.closed is not None:
        advice = f"`espalier session limits {shell_name(folder)}` raises the limit; a seed or an idea reopens it too"
        raise CommandExit(BAD_INPUT, f"session {folder.name} has ended ({live.state.closed}): {advice}")


def _run_resumed(folder: Path, device: str | None, state: SessionState, run: RunSession) -> tuple[SessionState, Outcome]:
    label = checked_device(device or queries.device_label(state))

    async def work(printer: ProgressPrinter) -> tuple[SessionState, Outcome]:
        live = await resume(folder, printer.show, label)
        return await run_session(live, run, printer, state.seq + 1)

    try:
        return drive(work)
    except KeyboardInterrupt:
        raise interrupted(folder) from None
