"""Two shells, an MCP client and the screen steer one session at once: each command answered once, none lost, in order.

pytest -m slow tests/api/test_many_askers.py        1,000 commands
"""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path

import pytest
from mcp import Client
from support.sessions import opened, ports
from support.shells import note

from engine.api import agents
from engine.api.agents import AgentLimits
from engine.api.mcp_server import make_server
from engine.domain import commands as c
from engine.domain import events as e
from engine.journal import inbox, store
from engine.journal.journal import read
from engine.session.live import LiveSession
from tui.bridge import Bridge, live_bridge

SHELLS = ("first shell", "second shell")
ASKERS = (*SHELLS, "agent", "screen")


async def agent(folder: Path, count: int) -> None:
    async with Client(make_server(AgentLimits(folder.parent), "tester")) as client:
        for number in range(count):
            done = await client.call_tool("add_note", {"session": folder.name, "text": f"agent {number}"})
            assert not done.is_error, done


async def screen(bridge: Bridge, count: int) -> None:
    for number in range(count):
        await bridge.submit(c.AddNote("", f"screen {number}"))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("count", [8, pytest.param(250, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_four_kinds_of_askers_steer_one_live_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    monkeypatch.setattr(agents, "_CALLS", 10 * count)
    folder = tmp_path / "sessions" / "shared"
    context = multiprocessing.get_context("spawn")

    async def search() -> None:
        async with LiveSession.create(folder, opened("ask"), ports(folder)) as live:
            running = asyncio.create_task(live.run())
            shells = [context.Process(target=note, args=(folder, who, count)) for who in SHELLS]
            for process in shells:
                process.start()
            await asyncio.gather(agent(folder, count), screen(live_bridge(live), count))
            for process in shells:
                await asyncio.to_thread(process.join)
                assert process.exitcode == 0
            running.cancel()

    asyncio.run(asyncio.wait_for(search(), 500))
    entries = read(folder).entries
    notes = [(entry.by.name, entry.event.text) for entry in entries if isinstance(entry.event, e.NoteAdded)]
    for who in ASKERS:
        by = "agent:tester" if who == "agent" else "engineer"
        assert [note for note in notes if note[1].startswith(f"{who} ")] == [(by, f"{who} {n}") for n in range(count)]
    assert len(notes) == len(store.state_of(folder).notes) == 4 * count
    answers = [entry.event for entry in entries if isinstance(entry.event, e.CommandAnswered)]
    assert all(answer.accepted for answer in answers)
    assert len({answer.request for answer in answers}) == len(answers) == 3 * count, "the screen holds the session: no request"
    assert inbox.waiting(folder) == []
