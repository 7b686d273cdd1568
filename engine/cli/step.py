"""``espalier open`` and ``espalier step``: resume a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.conclusion import awaiting_lines, conclude, end_by_outcome, interrupted, print_session
from engine.cli.drive import ProgressPrinter, RunSession, drive, run_round, run_round_approving, run_session, run_to_end
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import as_data, show, show_json
from engine.cli.session_access import read_state, session_argument
from engine.cli.session_file import imported_or_resolved
from engine.cli.ui import open_ui
from engine.cli.verbosity import quiet, verbosity
from engine.domain import commands as c
from engine.domain import queries
from engine.domain.state import SessionState
from engine.journal import store
from engine.journal.lock import refuse_shipped
from engine.report.facts.summary import summarise
from engine.report.text.shell import shell_name
from engine.session.factory import SavedSession, resume
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome
from engine.session.requirements import session_device

EPILOG = """\b
Exit status: 0 done, 1 no verified kernel, 2 bad usage or input, 3 stopped, awaiting you
or a provider, 4 no kernel whose time is corroborated, 130 interrupted."""
_device_option = click.option(
    "--device", type=o.DEVICE, metavar="cpu|cuda:N", help="Device to run on. Default: the one it ran on before."
)

_fresh_option = click.option(
    "--fresh-baselines", is_flag=True, help="Measure the baselines again first, then the kernels that the search goes on from: "
    "the incumbent, the best and the pinned ones. For another machine of the same model.",
)  # fmt: skip


@click.command("open", epilog=EPILOG)
@session_argument
@_device_option
@o.fleet_option
@click.option("--mode", type=o.ApprovalMode(), metavar="ask|ask:SECONDS|autopilot", help="Set who approves ideas, then resume.")
@_fresh_option
@o.plain_option
@o.headless_option
@o.json_option
@verbosity
def open_session(
    session: str, device: str | None, fleet: str | None, mode: str | None, fresh_baselines: bool, headless: bool, as_json: bool
) -> None:  # fmt: skip
    """Resume SESSION: its name, its folder, or a bundle file, which is imported first.

    In a terminal it opens the terminal UI. Without one, or with --headless, it runs until the session ends or awaits you; with
    --fleet too.
    """
    folder = imported_or_resolved(session)
    refuse_shipped(folder)
    chosen = session_device(store.state_of(folder), device) if device else ""
    saved = SavedSession(folder, chosen, mode or "", fresh_baselines, fleet or "")
    if not headless and not as_json and not fleet and open_ui("open", saved):
        return
    state = read_state(folder)
    if state.closed is not None and fresh_baselines:
        raise CommandExit(BAD_INPUT, _ended(folder, state.closed))
    if state.closed is not None and mode is None:
        if as_json:
            show_json(summarise(state, folder))
        else:
            print_session(state, folder)
        end_by_outcome(state, None)
        return
    state, outcome = _run_resumed(saved, state, run_to_end)
    conclude(state, folder, outcome, as_json=as_json)


@click.command(epilog=EPILOG)
@session_argument
@click.option("--ask", is_flag=True, help="Stop at ideas awaiting approval, and print them.")
@_device_option
@o.fleet_option
@o.json_option
@verbosity
def step(session: str, ask: bool, device: str | None, fleet: str | None, as_json: bool) -> None:
    """Run one round of SESSION, headless. Ideas awaiting approval are approved, unless --ask.

    A session that ended at its limit of rounds gets one more round.
    """
    folder = store.resolve(session)
    refuse_shipped(folder)
    state = read_state(folder)

    async def run(live: LiveSession) -> Outcome:
        await _allow_one_more_round(live, folder)
        return await (run_round(live) if ask else run_round_approving(live))

    after, outcome = _run_resumed(SavedSession(folder, device or "", fleet=fleet or ""), state, run)
    if not as_json or isinstance(outcome, EngineStopped):
        conclude(after, folder, outcome, as_json=as_json)
        return
    stop = outcome if isinstance(outcome, AwaitingEngineer) else AwaitingEngineer(())
    awaiting = {"awaiting": list(stop.ideas), "prompts": list(stop.calls), "paused": stop.paused}
    show_json({**as_data(summarise(after, folder)), **awaiting})
    if isinstance(outcome, AwaitingEngineer) and not quiet():
        show(awaiting_lines(after), err=True)
    end_by_outcome(after, outcome)


async def _allow_one_more_round(live: LiveSession, folder: Path) -> None:
    state = live.state
    rounds = state.limits.rounds
    done = queries.rounds_done(state)
    if state.closed is not None and rounds is not None and done >= rounds:
        await live.submit(c.SetLimits(replace(state.limits, rounds=done + 1)))
    if live.state.closed is not None:
        raise CommandExit(BAD_INPUT, _ended(folder, live.state.closed))


def _ended(folder: Path, why: str) -> str:
    advice = f"`espalier session limits {shell_name(folder)}` raises the limit; a seed or an idea reopens it too"
    return f"session {folder.name} has ended ({why}): {advice}"


def _run_resumed(saved: SavedSession, state: SessionState, run: RunSession) -> tuple[SessionState, Outcome]:
    on_device = replace(saved, device=session_device(state, saved.device))

    async def work(printer: ProgressPrinter) -> tuple[SessionState, Outcome]:
        live = await resume(on_device, printer.step)
        return await run_session(live, run, printer, state.seq + 1)

    try:
        return drive(work)
    except KeyboardInterrupt:
        raise interrupted(saved.folder) from None
