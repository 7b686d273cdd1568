"""Whole sessions on disk for tests: a scripted tree of kernels, a fake clock, and a comparison of two sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import builders
from support.scripted import SCRIPT, ScriptedProposer

from engine.domain.events import SessionOpened
from engine.domain.model import CATEGORIES, Contract, Dialect, Draft, IdeaText
from engine.domain.state import SessionState
from engine.domain.work import Proposal
from engine.ideas.proposer import Proposer
from engine.journal.blobs import Blobs
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession, Ports
from engine.session.ports import Bench


class Ticking:
    """A clock that advances 10 ms at every reading, and by the given time in ``sleep``."""

    def __init__(self) -> None:
        self.now = builders.START
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += 0.01
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def source(name: str, mark: str = "") -> str:
    """A kernel's text for the fake bench; ``mark`` e.g. ``time_us = 250`` or ``mismatch``."""
    planted = f"// FAKE: {mark}\n" if mark else ""
    return f'// {name}\n{planted}extern "C" void launch(const float* x, float* out, void* workspace) {{}}\n'


def draft(name: str, mark: str = "", tunables: Mapping[str, int] | None = None) -> Draft:
    return Draft(source(name, mark), Dialect.CPP, Contract.HOST, f"{name}.cpp", tunables or {})


def proposal(key: str, parent: str | None, number: int = 0) -> Proposal:
    text = IdeaText(f"Idea {key}", CATEGORIES[number % len(CATEGORIES)], f"Because of {key}.", 1.5, key)
    return Proposal(text, parent, SCRIPT)


TREE = ScriptedProposer(
    rounds={
        0: (proposal("root", None),),
        1: (proposal("wide", "k1", 0), proposal("deep", "k1", 1)),
        2: (proposal("wider", "k2", 2), proposal("broken", "k2", 3)),
        3: (proposal("last", "k6", 4), proposal("never", "k2", 5)),
    },
    drafts={
        "root": (draft("root", "time_us = 900"),),
        "wide": (draft("wide_a", "time_us = 500"), draft("wide_b", "time_us = 700")),
        "deep": (draft("deep_a", "mismatch"), draft("deep_b", "time_us = 800")),
        "wider": (draft("wider_a", "time_us = 300"), draft("wider_b", "crashed")),
        "broken": (draft("broken_a", "build_failed"), draft("broken_b", "timed_out")),
        "last": (draft("last_a", "time_us = 200"),),
    },
)
"""Three rounds after the naive port: k1 ← k2 k3 · k4 k5, k2 ← k6 k7 · k8 k9, k6 ← k10. ``never`` has no implementation."""

OPENED = builders.opened(branch=2, ideas=2)


def opened(mode: str = "autopilot", **settings: Any) -> SessionOpened:
    return replace(OPENED, mode=mode, settings=replace(OPENED.settings, **settings))


def on_suite(given: SessionOpened, names: Sequence[str] = ("full", "small")) -> SessionOpened:
    """The same on a suite called ``both``."""
    problem = replace(given.problem, suites={"both": tuple(names)})
    return replace(given, problem=problem, settings=replace(given.settings, workload=names[0], suite="both"))


def ports(folder: Path, ideas: Proposer = TREE, bench: Bench | None = None, **others: Any) -> Ports:
    clock = Ticking()
    given: dict[str, Any] = {"clock": clock, "sleep": clock.sleep, **others}
    return Ports(bench or FakeBench(Blobs(folder).put), ideas, **given)


def run(action: Callable[[], Awaitable[Any]]) -> Any:
    """An event loop for one test, with a limit of 30 s."""

    async def limited() -> Any:
        return await asyncio.wait_for(action(), 30)

    return asyncio.run(limited())


def whole(folder: Path, **settings: Any) -> SessionState:
    """The scripted tree, searched to its end on autopilot."""

    async def search() -> SessionState:
        async with LiveSession.create(folder, opened(**settings), ports(folder)) as live:
            await live.run()
            return live.state

    state: SessionState = run(search)
    return state


def tree(state: SessionState) -> dict[str, object]:
    """The part of a session that must not depend on timing or on the number of processes."""
    kernels = {
        k.id: (k.idea, k.parent, k.round, k.name, k.source, dict(k.tunables), k.stage, k.failure and k.failure.kind,
               k.measurement and k.measurement.time_us.value)
        for k in state.kernels.values()
    }  # fmt: skip
    ideas = {i.id: (i.text, i.parent, i.round, i.status, i.implemented, i.kernels) for i in state.ideas.values()}
    rounds = {r.number: (r.parents, r.closed) for r in state.rounds.values()}
    return {"kernels": kernels, "ideas": ideas, "rounds": rounds, "closed": state.closed}
