"""Sessions side by side: equal budgets, whose ideas won, and what cannot be compared."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b
from support import sessions

from engine.domain import events as e
from engine.domain.errors import ProblemError
from engine.domain.model import Author, CallRole, Succession, Usage
from engine.domain.races import inverted
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.report.facts.side_by_side import Budget, beside_comparable, course, side_by_side
from engine.report.page import compare as page
from engine.report.page import content, render
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


def test_kernels_may_have_any_names(tmp_path: Path) -> None:
    sessions.whole(tmp_path)
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"k10"', '"a last one"').replace('"k1"', '"zero"'))
    found = course("renamed", read(tmp_path).entries)
    assert [one.kernel for one in found.winners] == ["zero", "k2", "k6", "a last one"]


@pytest.mark.parametrize("number", ["0.0", '{"$float":"inf"}'])
def test_figures_of_a_damaged_journal_that_cannot_be_are_shown_all_the_same(tmp_path: Path, number: str) -> None:
    sessions.whole(tmp_path)
    journal = tmp_path / "journal.jsonl"
    journal.write_text(re.sub(r'("(?:value|low|high)":)[\d.e+-]+', rf"\g<1>{number}", journal.read_text()))
    found = read(tmp_path)
    assert lines(side_by_side([("one", found.entries), ("other", found.entries)]))
    assert "█" in render.markdown(content.page("one", found.entries, Blobs(tmp_path).text))
    ratios = [one.event.ratio for one in found.entries if isinstance(one.event, e.KernelRaced)]
    assert any(ratio is not None and inverted(ratio) for ratio in ratios)


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


def test_the_sustained_speedup_of_incumbents_is_shown_where_one_was_measured(entries: tuple[e.Entry, ...]) -> None:
    measured = e.KernelSustained("k10", 0, b.sustained(4.2))
    both = (*entries, replace(entries[-1], seq=entries[-1].seq + 1, event=measured))
    found = side_by_side([("single", entries), ("both", both)])
    assert [course.sustained for course in found.courses] == [None, b.sustained(4.2).speedup["eager"]]
    text = "\n".join(plain(spans) for spans in lines(found))
    assert "incumbent sustained" in text
    assert "not measured" in text
    assert "incumbent sustained" not in "\n".join(plain(one) for one in lines(side_by_side([("a", entries), ("b", entries)])))


def test_the_faster_one_is_named_only_where_intervals_are_apart() -> None:
    def session(speedup: float, tokens: int) -> list[e.Entry]:
        calls = (
            e.CallStarted("c1", "propose:1", CallRole.IDEAS, "openai:m", b.digest("p")),
            e.CallAnswered("c1", b.digest("r"), Usage(tokens, 0, 0)),
        )
        return list(b.entries((*b.first_round(), *calls, e.RoundOpened(1, ("k1",)),
                               b.proposed("i2", round_number=1, parent="k1"), e.IdeaSelected("i2"),
                               *b.measured_kernel("k2", speedup, idea="i2", parent="k1", round_number=1),
                               e.IncumbentChanged("k2", "k1", Succession.RACED))))  # fmt: skip

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


def test_a_session_that_was_never_prepared_has_nothing_to_compare(entries: tuple[e.Entry, ...]) -> None:
    unprepared = [entries[0]]
    for given in ([("a", entries), ("b", unprepared)], [("b", unprepared), ("a", entries)]):
        with pytest.raises(ProblemError, match=r"^b stopped before it had measured a baseline: it has nothing to compare$"):
            side_by_side(given)
    with pytest.raises(ProblemError, match=r"^b stopped before"):
        beside_comparable(("b", unprepared), [("a", entries)])
    with pytest.raises(ProblemError, match=r"^no other session"):
        beside_comparable(("a", entries), [("b", unprepared)])


def test_the_command_prints_curves_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from engine.cli.main import main

    for name in ("a", "b"):
        sessions.whole(tmp_path / name)
    assert main(["session", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["session"] for one in found["courses"]] == ["a", "b"]
    assert found["courses"][0]["points"]
    assert main(["session", "compare", str(tmp_path / "a")]) == 2


def improving(name: str, gains: tuple[float, ...], tokens: int) -> tuple[str, list[e.Entry]]:
    """A session in which each round's kernel takes the lead."""
    events: list[e.Event] = [*b.first_round()]
    speedup, parent = 1.0, "k1"
    for number, gain in enumerate(gains, 2):
        speedup, kernel, idea = speedup * gain, f"k{number}", f"i{number}"
        events += [
            e.CallStarted(f"c{number}", f"propose:{number - 1}", CallRole.IDEAS, "openai:m", b.digest("p")),
            e.CallAnswered(f"c{number}", b.digest("r"), Usage(tokens, 0, 0)),
            e.RoundOpened(number - 1, (parent,)), b.proposed(idea, round_number=number - 1, parent=parent),
            e.IdeaSelected(idea), *b.measured_kernel(kernel, speedup, idea=idea, parent=parent, round_number=number - 1),
            e.IncumbentChanged(kernel, parent, Succession.RACED), e.RoundClosed(number - 1),
        ]  # fmt: skip
        parent = kernel
    return name, list(b.entries(tuple(events)))


def test_the_page_draws_a_curve_with_its_interval_for_each_session_and_budget() -> None:
    found = side_by_side([improving("with me", (1.2, 1.5, 1.3), 100), improving("alone <b>", (1.1, 1.1), 300)])
    drawn = page.charts(found)
    assert [chart.budget for chart in drawn] == list(Budget)
    for chart in drawn:
        assert {curve.session for curve in chart.curves} == {"with me", "alone <b>"}
        heights = sorted(curve.at[1] for curve in chart.curves if abs(curve.at[0] - chart.curves[0].at[0]) < 90)
        assert all(after - before >= 14 for before, after in itertools.pairwise(heights)), "no label hides another"
        by_session = {one.session: one for one in found.courses}
        assert chart.equal == min(one.total(chart.budget) for one in found.courses)
        for curve, one in ((curve, by_session[curve.session]) for curve in chart.curves):
            corners = [tuple(map(float, point.split(","))) for point in curve.line.split()]
            band = [tuple(map(float, point.split(","))) for point in curve.band.split()]
            assert len(band) == 2 * len(corners) == 2 * (2 * len(one.points))
            assert [x for x, _ in corners] == sorted(x for x, _ in corners)
            assert corners[-1][0] == pytest.approx(chart.x(one.total(chart.budget)), abs=0.1), "drawn to its end"
            assert all(high[1] <= middle[1] <= low[1] for high, middle, low in zip(band, corners, reversed(band), strict=False))
    text = page.html(found)
    assert text == page.html(found)
    assert "alone &lt;b&gt;" in text
    assert "<b>" not in text
    assert "<script" not in text
    assert text.count('<polyline class="curve"') == 6
    assert "with me is faster" in text


def test_without_tokens_and_without_an_incumbent_a_chart_is_left_out(entries: tuple[e.Entry, ...]) -> None:
    found = side_by_side([("whole", entries), ("just begun", entries[:3])])
    assert page.charts(found) == ()
    assert "no incumbent" in page.html(found)


@pytest.mark.slow
def test_the_command_writes_the_page_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from engine.cli.main import main

    for name in ("a", "b"):
        sessions.whole(tmp_path / name)
    command = ["session", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "c.html")]
    assert main(command) == 0
    assert f"wrote {tmp_path / 'c.html'}" in capsys.readouterr().out
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
    assert main(command) == 2
    assert "already exists" in capsys.readouterr().err
    assert main([*command, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]


def test_only_sessions_that_mean_the_same_are_laid_beside_the_first(entries: tuple[e.Entry, ...]) -> None:
    other = [e.Entry(0, entries[0].at, entries[0].by, sessions.opened(workload="other")), *entries[1:]]
    found = beside_comparable(("a", entries), [("b", other), ("c", entries), ("d", entries)], most=2)
    assert [course.session for course in found.courses] == ["a", "c"]
    with pytest.raises(ProblemError, match="no other session has the problem, workload, device and baseline of a"):
        beside_comparable(("a", entries), [("b", other)])


def test_the_text_draws_each_curve_to_where_its_session_ended() -> None:
    found = side_by_side([improving("long", (1.2, 1.5, 1.3, 1.1), 100), improving("short", (1.1,), 100)])
    drawn = [plain(spans) for spans in lines(found)]
    at = next(n for n, text in enumerate(drawn) if text.startswith("best so far by verdicts"))
    first, second = (drawn[at + n].split("[")[0] for n in (1, 2))
    assert first.count("█") >= 1
    assert sum(mark in "·▁▂▃▄▅▆▇█" for mark in second) < sum(mark in "·▁▂▃▄▅▆▇█" for mark in first)


def test_long_names_that_differ_at_their_ends_stay_apart_in_80_columns() -> None:
    names = ("conv2d_relu_maxpool_h200_autopilot", "conv2d_relu_maxpool_h200_by_hand")
    found = side_by_side([improving(names[0], (1.2, 1.5, 1.3, 1.1), 100), improving(names[1], (1.1, 1.2, 1.3), 100)])
    shown = [plain(spans) for spans in lines(found, 80)]
    assert max(map(len, shown)) <= 80
    heads = [text for text in shown if text.startswith("at equal")]
    assert len(heads) == 1, "both fit beside each other"
    assert "autopilot" in heads[0]
    assert "by_hand" in heads[0]
    assert any(text.endswith("1st faster") for text in shown)
    assert any(text.endswith("autopilot is faster") for text in map(plain, lines(found)))


def test_in_a_small_room_sessions_that_do_not_fit_follow_below(entries: tuple[e.Entry, ...]) -> None:
    found = side_by_side([(f"session-{number}", entries) for number in range(5)])
    shown = [plain(spans) for spans in lines(found, 76)]
    tables = [n for n, text in enumerate(shown) if text.startswith("at equal")]
    assert len(tables) > 1
    assert all(len(text) <= 76 for text in shown[tables[0] : tables[-1] + 4])
    assert sum(text.count("overlap") for text in shown) == len(found.rows)
    assert all(any(f"session-{number}" in shown[n] for n in tables) for number in range(5))
