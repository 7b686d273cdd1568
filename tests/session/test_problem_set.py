"""One budget over several problems: who is next, what each may spend, and continuing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b
from support.scripted import ScriptedProposer
from support.sessions import OPENED, TREE, draft, opened, ports, proposal, run

from engine.domain import commands as c
from engine.domain.errors import ProblemError
from engine.domain.model import Problem
from engine.domain.settings import Limits
from engine.journal import store
from engine.session.factory import NewSession, SavedSession
from engine.session.live import LiveSession
from engine.session.outcome import Outcome, Until
from engine.session.problem_set import ProblemSet, SetBudget, member_folders, restored

ENDLESS = Limits(rounds=None, kernels=None, plateau=None, light=None)
SHORT = ScriptedProposer(rounds={0: (proposal("root", None),)}, drafts={"root": (draft("root", "time_us = 900"),)})


def problem(name: str) -> Problem:
    return replace(b.problem(name), digest=b.digest(name))


def request(name: str) -> NewSession:
    return NewSession(problem(name), "cpu", replace(OPENED.settings, limits=ENDLESS))


async def run_live(live: LiveSession, from_seq: int) -> Outcome:
    async with live:
        return await live.run(Until.IDLE)


def problem_set(
    root: Path, names: str, budget: SetBudget, proposers: Mapping[str, ScriptedProposer] | None = None
) -> ProblemSet:
    """A set whose sessions run on fake benches; a problem called ``x`` cannot be read."""
    requests = [request(name) for name in names]
    folders = member_folders([one.problem for one in requests], root, "")
    ideas = {**dict.fromkeys(names, TREE), **(proposers or {})}

    async def begin(new: NewSession, say: object) -> LiveSession:
        if new.problem.name == "x":
            raise ProblemError("x: unreadable")
        assert new.folder is not None
        first = replace(opened(), problem=new.problem, settings=new.settings)
        return LiveSession.create(new.folder, first, ports(new.folder, ideas[new.problem.name]))

    async def resume(saved: SavedSession, say: object) -> LiveSession:
        return LiveSession.resume(saved.folder, ports(saved.folder, ideas[saved.folder.name]))

    members = [restored(one, folder) for one, folder in zip(requests, folders, strict=True)]
    return ProblemSet(members, budget, 2, begin, resume)


def kernels(problems: ProblemSet) -> dict[str, int]:
    return {member.name: len(member.state.kernels) for member in problems.members}


def test_every_problem_gets_kernels_and_the_budget_is_not_exceeded(tmp_path: Path) -> None:
    problems, said = problem_set(tmp_path, "ab", SetBudget(11)), []
    why = run(lambda: problems.run(run_live, said.append))
    assert why == "11 of 11 kernels tried"
    assert sum(kernels(problems).values()) == 11
    assert min(kernels(problems).values()) >= 3
    assert said[:2] == ["a is next: its first kernels", "b is next: its first kernels"]
    assert "is expected to gain" in said[2]


def test_only_the_turn_that_takes_the_rest_of_the_budget_ends_a_search(tmp_path: Path) -> None:
    """Any other limit is raised in a later turn, so no search behaves as if its end were near."""
    problems, raised = problem_set(tmp_path, "ab", SetBudget(9)), list[bool]()
    run(lambda: problems.run(run_live, lambda _: None, lambda member: raised.append(member.state.limits.raised_later)))
    assert len(raised) > 3
    assert raised == [True] * (len(raised) - 1) + [False]


def test_the_same_call_continues_and_a_larger_budget_extends(tmp_path: Path) -> None:
    first = problem_set(tmp_path, "ab", SetBudget(6))
    run(lambda: first.run(run_live, lambda _: None))
    again = problem_set(tmp_path, "ab", SetBudget(6))
    assert kernels(again) == kernels(first)
    assert run(lambda: again.run(run_live, lambda _: None)) == "6 of 6 kernels tried"
    assert kernels(again) == kernels(first)
    larger = problem_set(tmp_path, "ab", SetBudget(10))
    run(lambda: larger.run(run_live, lambda _: None))
    assert sum(kernels(larger).values()) == 10
    assert store.state_of(tmp_path / "a").opened is not None


def test_a_problem_that_fails_leaves_the_budget_to_the_others(tmp_path: Path) -> None:
    problems = problem_set(tmp_path, "axb", SetBudget(9))
    assert run(lambda: problems.run(run_live, lambda _: None)) == "9 of 9 kernels tried"
    assert kernels(problems)["x"] == 0
    assert [member.stopped for member in problems.members] == ["", "x: unreadable", ""]


def test_a_search_without_further_ideas_ends_and_the_others_go_on(tmp_path: Path) -> None:
    problems = problem_set(tmp_path, "ab", SetBudget(30), {"a": SHORT})
    why = run(lambda: problems.run(run_live, lambda _: None))
    assert why == "no search can go on"
    assert kernels(problems)["a"] == 1
    assert kernels(problems)["b"] > 4
    assert [standing.ended for standing in problems.standings()] == ["no further ideas", "no further ideas"]


def test_a_session_that_was_ended_by_hand_stays_ended(tmp_path: Path) -> None:
    first = problem_set(tmp_path, "a", SetBudget(3))
    run(lambda: first.run(run_live, lambda _: None))

    async def end() -> None:
        async with LiveSession.resume(tmp_path / "a", ports(tmp_path / "a")) as live:
            await live.submit(c.SetLimits(ENDLESS))
            await live.submit(c.EndSession("good enough"))

    run(end)
    again = problem_set(tmp_path, "a", SetBudget(9))
    assert run(lambda: again.run(run_live, lambda _: None)) == "no search can go on"
    assert again.standings()[0].ended == "good enough"


@pytest.mark.parametrize(("budget", "words"), [
    (SetBudget(99, seconds=0.01), "seconds spent"), (SetBudget(99, tokens=0), "0 of 0 tokens spent"),
])  # fmt: skip
def test_every_part_of_the_budget_counts(tmp_path: Path, budget: SetBudget, words: str) -> None:
    problems = problem_set(tmp_path, "ab", budget)
    assert words in run(lambda: problems.run(run_live, lambda _: None))
    assert sum(kernels(problems).values()) < 11


def test_default_folders_follow_from_the_problems_and_the_settings() -> None:
    both = [problem("a"), problem("b")]
    one = member_folders(both, None, "cpu small")
    assert one == list(reversed(member_folders(both[::-1], None, "cpu small")))
    assert not {*one} & {*member_folders(both, None, "cuda:0 small"), *member_folders([*both, problem("c")], None, "cpu small")}
    assert len({*member_folders([problem("a"), problem("a")], None, "")}) == 2
