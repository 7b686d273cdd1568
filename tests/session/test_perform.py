"""The requests that ports receive, and the use of their results."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b
from support import sessions
from support.calls import calls
from support.scripted import ScriptedProposer

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.model import Dialect
from engine.domain.state import SessionState
from engine.ideas.authoring import dialect_of
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation
from engine.journal.blobs import Blobs
from engine.session.fake_bench import FAKE_CPU, FAKE_GPU, FakeBench
from engine.session.perform import Ceilings, Effects, perform
from engine.session.ports import Say


class Asked(ScriptedProposer):
    """Records its requests."""

    __slots__ = ("code", "ideas")

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[w.Proposal, ...]:
        object.__setattr__(self, "ideas", request)
        return await super().propose(request, calls)

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        object.__setattr__(self, "code", request)
        return Implementation(self.drafts[request.idea.text.key])


def _session(folder: Path) -> tuple[SessionState, Effects, Asked]:
    """Two measured kernels with their code as blobs; the parent of ``i2`` is the second."""
    blobs = Blobs(folder)
    for text in ("first", "second"):
        blobs.put(text.encode())
    state = b.fold(
        *b.first_round(),
        e.RoundOpened(1, ("k2",)),
        b.proposed("i2", "i3", round_number=1, parent="k2", branch=1),
        *b.measured_kernel("k2", 2.0, idea="i2", parent="k1", source="second"),
    )
    kernels = {**state.kernels, "k1": replace(state.kernels["k1"], source=b.digest("first"))}
    asked = Asked(sessions.TREE.rounds, {b.idea_text(3).key: (sessions.draft("one"), sessions.draft("two"))})
    return replace(state, kernels=kernels), Effects(FakeBench(blobs.put), asked, blobs), asked


def test_a_proposer_receives_the_code_of_all_possible_parents(tmp_path: Path) -> None:
    state, effects, asked = _session(tmp_path)
    result = sessions.run(lambda: perform(w.Propose(1, ("k2",), 2), state, effects, calls(), print))
    assert isinstance(result, w.Proposals)
    assert asked.ideas.code == {"k1": "first", "k2": "second"}
    assert (asked.ideas.round, asked.ideas.parents, asked.ideas.count) == (1, ("k2",), 2)


def test_at_most_branch_drafts_become_blobs(tmp_path: Path) -> None:
    state, effects, asked = _session(tmp_path)
    result = sessions.run(lambda: perform(w.Implement("i3"), state, effects, calls(), print))
    assert isinstance(result, w.Drafts)
    assert [effects.blobs.text(d.source) for d in result.drafts] == [sessions.source("one")]
    assert result.drafts[0].author == asked.author
    assert asked.code.parent_code == "second"


def test_a_missing_code_blob_is_an_engine_failure(tmp_path: Path) -> None:
    state, effects, _ = _session(tmp_path)
    (tmp_path / "blobs" / b.digest("second")).unlink()
    result = sessions.run(lambda: perform(w.Build("k2", 0), state, effects, calls(), print))
    assert isinstance(result, w.Impossible)
    assert "is missing" in result.reason


def test_invalid_unicode_is_stored(tmp_path: Path) -> None:
    state, effects, _ = _session(tmp_path)
    odd = replace(sessions.draft("odd"), source="half a pair: \ud83d")
    effects = replace(effects, ideas=ScriptedProposer({}, {b.idea_text(3).key: (odd,)}))
    result = sessions.run(lambda: perform(w.Implement("i3"), state, effects, calls(), print))
    assert isinstance(result, w.Drafts)
    assert effects.blobs.text(result.drafts[0].source) == "half a pair: ?"


@pytest.mark.parametrize(
    ("device", "scalar_only", "expected"),
    [(FAKE_CPU, True, Dialect.CPP), (FAKE_GPU, True, Dialect.CUDA), (FAKE_GPU, False, Dialect.PYTHON)],
)
def test_the_dialect_follows_the_device_and_the_arguments(device: object, scalar_only: bool, expected: Dialect) -> None:
    state = b.fold(b.opened(), b.prepared())
    signature = replace(b.signature(), scalar_only=scalar_only)
    state = replace(state, device=device, preparation=replace(b.preparation(), signature=signature))
    assert dialect_of(state) is expected


@pytest.mark.slow
def test_waiting_for_another_process_does_not_count_towards_a_limit(tmp_path: Path) -> None:
    said: list[str] = []

    class WaitingBench(FakeBench):
        async def prepare(self, say: Say) -> w.Impossible:
            for _ in range(8):
                say("waiting for cpu, held by process 7, 1 ahead")
                await asyncio.sleep(0.1)
            return w.Impossible("waited to the end")

    _, effects, _ = _session(tmp_path)
    patient = replace(effects, bench=WaitingBench(effects.blobs.put), ceilings=Ceilings(prepare=0.4))
    result = sessions.run(lambda: perform(w.Prepare(), SessionState(), patient, calls(), said.append))
    assert result == w.Impossible("waited to the end")
    assert len(said) == 8
