"""Sessions side by side: equal budgets, whose ideas won, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import builders as b
from support import sessions

from engine.domain import events as e
from engine.domain.errors import ProblemError
from engine.domain.model import Author, CallRole, Usage
from engine.journal.journal import read
from engine.report.facts.side_by_side import Budget, course, side_by_side
from engine.report.text.lines import plain
from engine.report.text.side_by_side import lines

AGENT = Author("agent:claude")


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> tuple[e.Entry, ...]:
    folder = tmp_path_factory.mktemp("whole")
    sessions.whole(folder)
    return read(folder).entries


def test_a_course_counts_verdicts_and_follows_the_incumbent(entries: tuple[e.Entry, ...]) -> None:
    found = course("mine", entries)
    settled = [one for one in entries if isinstance(one.event, e.KernelMeasured | e.KernelFailed | e.KernelQuarantined)]
    assert found.verdicts == len(settled)
    values = [point.speedup.value for point in found.points]
    assert values == sorted(values)
    assert [point.verdicts for point in found.points] == sorted(point.verdicts for point in found.points)
    assert found.best(Budget.VERDICTS, 0) is None
    assert found.best(Budget.VERDICTS, found.verdicts) == found.points[-1]
    assert [one.kernel for one in found.winners] == ["k1", "k2", "k6", "k10"]
    assert found.winners[0].gain is None
    assert found.winners[-1].gain is not None
    assert found.winners[-1].gain.value == pytest.approx(300 / 200)


def test_equal_budgets_end_where_the_session_that_spent_least_ended(entries: tuple[e.Entry, ...]) -> None:
    half = next(n for n, one in enumerate(entries) if isinstance(one.event, e.RoundClosed) and one.event.round == 1) + 1
    found = side_by_side([("whole", entries), ("half", entries[:half])])
    verdicts = [row for row in found.rows if row.budget is Budget.VERDICTS]
    assert verdicts[-1].spent == found.courses[1].verdicts < found.courses[0].verdicts
    assert verdicts[-1].best[0] == verdicts[-1].best[1], "the same search up to there"
    assert verdicts[-1].faster is None
    assert not [row for row in found.rows if row.budget is Budget.TOKENS], "no tokens were spent"
    text = "\n".join(plain(spans) for spans in lines(found))
    assert "overlap" in text
    assert "ideas that won in half" in text


def test_the_faster_one_is_named_only_where_intervals_are_apart() -> None:
    def session(speedup: float, tokens: int) -> list[e.Entry]:
        calls = (
            e.CallStarted("c1", "propose:1", CallRole.IDEAS, "openai:m", b.digest("p")),
            e.CallAnswered("c1", b.digest("r"), Usage(tokens, 0, 0)),
        )
        return list(b.entries((*b.first_round(), *calls, e.RoundOpened(1, ("k1",)),
                               b.proposed("i2", round_number=1, parent="k1"), e.IdeaSelected("i2"),
                               *b.measured_kernel("k2", speedup, idea="i2", parent="k1", round_number=1),
                               e.IncumbentChanged("k2", "k1", e.Succession.RACED))))  # fmt: skip

    found = side_by_side([("slow", session(2.0, 100)), ("fast", session(4.0, 300))])
    last = {row.budget: row for row in found.rows}
    assert last[Budget.VERDICTS].faster == 1
    assert last[Budget.TOKENS].spent == 100
    assert last[Budget.TOKENS].best[1] is not None
    assert last[Budget.TOKENS].best[1].kernel == "k1", "it had spent more tokens by the time of k2"


def test_sessions_that_mean_different_things_are_not_compared(entries: tuple[e.Entry, ...]) -> None:
    opened = sessions.opened(workload="other")
    other = [e.Entry(0, entries[0].at, entries[0].by, opened), *entries[1:]]
    with pytest.raises(
        ProblemError, match=r"a and b have different workloads \(\w+ and other\): compare sessions of one problem"
    ):
        side_by_side([("a", entries), ("b", other)])


def test_the_command_prints_curves_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from engine.cli.main import main

    for name in ("a", "b"):
        sessions.whole(tmp_path / name)
    assert main(["session", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["session"] for one in found["courses"]] == ["a", "b"]
    assert found["courses"][0]["points"]
    assert main(["session", "compare", str(tmp_path / "a")]) == 2
