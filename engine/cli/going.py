"""``espalier open`` and ``espalier step``: a session goes on where it stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.ending import BAD_INPUT, DONE, FAILED, Ended, end
from engine.cli.machine import checked_device
from engine.cli.main import open_face
from engine.cli.output import show, show_json
from engine.cli.reading import state_of
from engine.cli.running import (
    Search,
    Teller,
    awaiting_lines,
    conclude,
    drive,
    interrupted,
    one_round,
    one_round_approving,
    print_session,
    search,
    summary_of,
    to_the_end,
    typed,
)
from engine.domain import commands as c
from engine.domain import queries
from engine.domain.state import SessionState
from engine.journal import store
from engine.session.assembly import resume
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome


@click.command("open")
@click.argument("session")
@click.option("--device", metavar="cpu|cuda:N", help="Go on there; default: where it ran before.")
@click.option("--mode", type=o.Mode(), metavar="ask|ask:SECONDS|autopilot", help="Change who approves ideas, then go on.")
@click.option("--headless", is_flag=True, help="No screen: progress lines, and the tree at the end.")
@o.json_option
def open_session(session: str, device: str | None, mode: str | None, headless: bool, as_json: bool) -> None:
    """Go on with SESSION: its name or its folder. Without a screen, to its end or to a decision of yours."""
    folder = store.resolve(session)
    if not headless and not as_json and open_face("open", folder):
        return
    state = state_of(folder)
    if state.closed is not None and mode is None:
        if as_json:
            show_json(summary_of(state, folder))
        else:
            print_session(state, folder)
        end(FAILED if queries.incumbent(state) is None else DONE)
        return

    async def go_on(live: LiveSession) -> Outcome:
        if mode is not None and mode != live.state.mode:
            await live.submit(c.SetMode(mode))
        return await to_the_end(live)

    state, outcome = _resumed(folder, device, state, go_on)
    conclude(state, folder, outcome, as_json=as_json)


@click.command()
@click.argument("session")
@click.option("--ask", is_flag=True, help="Stop where ideas await a decision, and print them.")
@click.option("--device", metavar="cpu|cuda:N", help="Go on there; default: where it ran before.")
@o.json_option
def step(session: str, ask: bool, device: str | None, as_json: bool) -> None:
    """One round of SESSION, headless; what is undecided is approved, unless --ask.

    A session that its own limit of rounds has ended gets one more.
    """
    folder = store.resolve(session)
    state = state_of(folder)

    async def go_on(live: LiveSession) -> Outcome:
        await _one_more(live, folder)
        return await (one_round(live) if ask else one_round_approving(live))

    after, outcome = _resumed(folder, device, state, go_on)
    if not as_json or isinstance(outcome, EngineStopped):
        conclude(after, folder, outcome, as_json=False)
        return
    waits = outcome if isinstance(outcome, AwaitingEngineer) else AwaitingEngineer(())
    asked = {"awaiting": list(waits.ideas), "prompts": list(waits.calls), "paused": waits.paused}
    show_json({**_as_dict(after, folder), **asked})
    if isinstance(outcome, AwaitingEngineer):
        show(awaiting_lines(after), err=True)
    end(FAILED if queries.incumbent(after) is None else DONE)


def _as_dict(state: SessionState, folder: Path) -> dict[str, object]:
    found = summary_of(state, folder)
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


async def _one_more(live: LiveSession, folder: Path) -> None:
    state = live.state
    rounds = state.limits.rounds
    done = sum(1 for r in state.rounds.values() if r.closed and r.number > 0)
    if state.closed is not None and rounds is not None and done >= rounds:
        await live.submit(c.SetLimits(replace(state.limits, rounds=done + 1)))
    if live.state.closed is not None:
        advice = f"`espalier limits {typed(folder)}` changes what ends it, a seed or an idea of yours takes it up again"
        raise Ended(BAD_INPUT, f"session {folder.name} has ended ({live.state.closed}): {advice}")


def _resumed(folder: Path, device: str | None, state: SessionState, how: Search) -> tuple[SessionState, Outcome]:
    teller = Teller()
    label = checked_device(device or _recorded_device(state))

    async def work() -> tuple[SessionState, Outcome]:
        live = await resume(folder, teller.say, label)
        return await search(live, how, teller, state.seq + 1)

    try:
        return drive(work)
    except KeyboardInterrupt:
        raise interrupted(folder) from None
    finally:
        teller.moment.clear()


def _recorded_device(state: SessionState) -> str:
    assert state.opened is not None
    return state.device.label if state.device else state.opened.device
