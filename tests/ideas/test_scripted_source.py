"""A source whose answers are data."""

from __future__ import annotations

import asyncio

from support import builders as b
from support import sessions
from support.calls import calls

from engine.domain import events as e
from engine.domain.model import Dialect
from engine.ideas.source import CodeRequest, IdeaRequest, RepairRequest

STATE = b.fold(b.opened(), b.prepared(), b.proposed("i1", branch=1), b.drafted("k1"), e.IdeaSelected("i1"))


def test_rounds_are_answered_by_number_and_at_most_as_asked() -> None:
    def keys(number: int, count: int) -> list[str]:
        request = IdeaRequest(STATE, number, (), count, Dialect.CPP)
        return [p.text.key for p in asyncio.run(sessions.TREE.propose(request, calls()))]

    assert keys(1, 9) == ["wide", "deep"]
    assert keys(1, 1) == ["wide"]
    assert keys(7, 9) == []


def test_drafts_are_found_by_key_and_cut_to_the_branch() -> None:
    idea = sessions.builders.replace(STATE.ideas["i1"], text=sessions.proposal("wide", None).text)
    made = asyncio.run(sessions.TREE.implement(CodeRequest(STATE, idea, Dialect.CPP, None), calls()))
    assert [d.name for d in made.drafts] == ["wide_a.cpp"]
    unknown = asyncio.run(sessions.TREE.implement(CodeRequest(STATE, STATE.ideas["i1"], Dialect.CPP, None), calls()))
    assert unknown.drafts == ()
    assert "nothing is scripted" in unknown.note


def test_what_is_not_scripted_is_not_repaired() -> None:
    request = RepairRequest(STATE, STATE.kernels["k1"], "", "", "")
    assert asyncio.run(sessions.TREE.repair(request, calls())) is None
