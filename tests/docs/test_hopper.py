"""The page on Hopper: its figures are those of the recorded sessions, and prompts quote its list word for word."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from docs.pages import ROOT

from engine.domain import events as e
from engine.domain.folds import advance
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.ideas.prompts import context, hardware
from engine.journal import journal
from engine.session.fake_bench import FAKE_GPU

PAGE = (ROOT / "docs" / "explanation" / "hopper.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| (\w+) \| (k\d+) → (k\d+) \| .* \| ([\d.]+) → ([\d.]+) µs \| ([\d.]+)×(?: \[([\d.]+), ([\d.]+)\])? \|$", PAGE, re.M
)


@cache
def recorded(session: str) -> SessionState:
    return advance(SessionState(), journal.read(ROOT / "sessions" / session).entries)


@cache
def medians(session: str) -> list[dict[str, float]]:
    """Kernel → median, for each time that the session's baselines were measured: those of one may be compared."""
    found: list[dict[str, float]] = []
    for entry in journal.read(ROOT / "sessions" / session).entries:
        match entry.event:
            case e.SessionPrepared():
                found.append({})
            case e.KernelMeasured(kernel, measurement):
                found[-1][kernel] = measurement.time_us.value
    return found


def rounds_to(value: float, text: str) -> bool:
    decimals = len(text.partition(".")[2])
    return abs(value - float(text)) <= 0.5000001 * 10**-decimals


def three_digits(value: float, text: str) -> bool:
    return f"{value:.3g}" == f"{float(text):.3g}"


def test_the_page_has_rows_of_every_steered_session() -> None:
    """Those on autopilot ran the same kernels."""
    names = {path.name for path in (ROOT / "sessions").iterdir() if path.is_dir()}
    assert {row[0] for row in ROWS} == {name for name in names if not name.endswith("_autopilot")}
    assert len(ROWS) == PAGE.count(" → k")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_a_row_is_what_the_session_recorded(row: tuple[str, ...]) -> None:
    session, before, after, first, second, ratio, low, high = row
    both = [(one[before], one[after]) for one in medians(session) if before in one and after in one]
    said = [pair for pair in both if three_digits(pair[0], first) and three_digits(pair[1], second)]
    assert said, both
    if not low:
        assert any(rounds_to(one / other, ratio) for one, other in said), said
        return
    races = [race.ratio for race in recorded(session).races if (race.kernel, race.against) == (after, before)]
    assert any(rounds_to(r.value, ratio) and rounds_to(r.low, low) and rounds_to(r.high, high) for r in races), races


OVER_EAGER = re.findall(r"^\| (\w+) \| (k\d+),[^|]* \| ([^|]*) \| ([\d.]+)×, ([\d.]+)× \|", PAGE, re.M)
IN_README = re.findall(r"(\w+) ([\d.]+)× \[([\d.]+), ([\d.]+)\]", README.partition("Sessions over ")[2])


def is_interval(found: Interval | None, figures: tuple[str, ...]) -> bool:
    assert found is not None
    return all(rounds_to(value, text) for value, text in zip((found.value, found.low, found.high), figures, strict=True))


@pytest.mark.parametrize(("session", "kernel", "figures", "worst", "best"), OVER_EAGER)
def test_a_speedup_over_a_suite_is_what_the_session_recorded(
    session: str, kernel: str, figures: str, worst: str, best: str
) -> None:
    measurement = recorded(session).kernels[kernel].measurement
    assert measurement is not None
    single, *others = re.findall(r"([\d.]+)× \[([\d.]+), ([\d.]+)\]", figures)
    assert is_interval(measurement.speedup["eager"], single)
    more = [measurement.speedup["compile"]] if "compile" in figures else []
    more += [measurement.sustained.speedup["eager"]] if measurement.sustained is not None else []
    assert len(more) == len(others)
    assert all(is_interval(one, said) for one, said in zip(more, others, strict=True))
    each = [part.speedup["eager"].value for part in measurement.by_workload]
    assert rounds_to(min(each), worst)
    assert rounds_to(max(each), best)


def test_the_readme_quotes_the_page() -> None:
    assert len(OVER_EAGER) == 6
    quoted = {
        (session, *re.findall(r"([\d.]+)× \[([\d.]+), ([\d.]+)\]", figures)[0]) for session, _, figures, _, _ in OVER_EAGER
    }
    assert len(IN_README) == 3
    assert quoted.issuperset(IN_README)


def test_prompts_quote_the_page_s_list() -> None:
    listed = PAGE.partition("## In short")[2].partition("\n## ")[0].strip()
    hopper = replace(FAKE_GPU, arch="sm_90a")
    assert hardware.measured(hopper) == listed
    assert listed in context.device_facts(hopper)


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a", "sm_999"])
def test_other_architectures_get_no_figures_of_hopper(arch: str) -> None:
    assert hardware.measured(replace(FAKE_GPU, arch=arch)) == ""
