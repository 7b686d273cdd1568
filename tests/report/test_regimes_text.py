"""Both regimes in words and figures: eval's rows and object, progress lines, the Timing pane, the report page, prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from benchmarks import results
from engine.domain import events as e
from engine.domain import model as m
from engine.domain import work as w
from engine.domain.model import Contract, Dialect, Interval, Measurement
from engine.domain.regimes import ClockAndPower, Regime
from engine.domain.state import SessionState
from engine.report.text import progress, regimes, verdict
from engine.report.text.lines import plain
from tui.viewmodel import timing

POWER = b.sustained(0.93, time_us=Interval(195.0, 194.0, 196.0))
BOTH = replace(b.measurement(1.02), sustained=POWER)
SUBJECT = verdict.VerdictSubject(
    "product", "k.cu", Dialect.CUDA, Contract.PLAN, b.device(), "full", "bubblewrap", regime=Regime.SUSTAINED
)


def found(measured: Measurement) -> verdict.Verdict:
    return verdict.verdict(SUBJECT, None, w.Measured(measured, 1.0), verdict.StageSeconds())


def test_the_object_has_both_regimes_with_clock_and_power() -> None:
    figures = found(replace(BOTH, clock=ClockAndPower(1980.0, 300.0))).regimes
    assert figures is not None
    assert figures.deciding == "sustained"
    assert figures.single.device == ClockAndPower(1980.0, 300.0)
    assert figures.sustained is not None
    assert figures.sustained.device == ClockAndPower(1410.0, 690.0)
    assert figures.sustained.speedup["eager"].value == 0.93


def test_a_disagreement_is_one_sentence_with_both_ratios_and_the_clock() -> None:
    sentence = regimes.disagreement(BOTH, "eager", Regime.SUSTAINED)
    assert sentence == (
        "The regimes disagree: single calls are 1.02× over eager, calls back to back at 1410 MHz 0.93×; sustained decides."
    )
    assert not regimes.disagreement(replace(BOTH, sustained=b.sustained(1.02)), "eager", Regime.SUSTAINED)
    assert not regimes.disagreement(b.measurement(1.02), "eager", Regime.SUSTAINED)


def test_rows_name_the_ratio_the_time_and_the_device_of_both() -> None:
    rows = {name: words if isinstance(words, str) else words.text for name, words in verdict.measurement_rows(BOTH)}
    assert rows["sustained"].startswith("0.93× [0.91, 0.95] over eager: slower, 195 µs")
    assert rows["sustained"].endswith("1410 MHz, 690 W (eager 1395 MHz, 698 W)")
    assert "sustained" not in dict(verdict.measurement_rows(b.measurement(1.02)))


@pytest.mark.parametrize("regime", Regime)
def test_regimes_agree_only_where_both_speedups_are_known(regime: Regime) -> None:
    def decides(measured: Measurement) -> str:
        figures = regimes.regime_figures(measured, "eager", regime)
        words = dict(regimes.regime_rows(measured, "eager", figures))["decides"]
        return words if isinstance(words, str) else words.text

    alike = replace(BOTH, sustained=b.sustained(1.02))
    assert decides(alike) == f"{regime}: the regimes agree"
    assert decides(replace(alike, sustained=replace(b.sustained(1.02), speedup={}))) == regime
    assert decides(replace(alike, speedup={})) == regime


@pytest.mark.parametrize(("regime", "status"), [(Regime.SUSTAINED, "not_corroborated"), (Regime.SINGLE, "measured")])
def test_a_doubt_about_the_deciding_regime_is_a_doubt_of_the_verdict(regime: Regime, status: str) -> None:
    doubted = replace(BOTH, sustained=replace(POWER, corroborated=False, doubts=("does it reuse results?",)))
    got = verdict.verdict(replace(SUBJECT, regime=regime), None, w.Measured(doubted, 1.0), verdict.StageSeconds())
    assert got.status == status
    assert got.corroborated is (status == "measured")


def session(*events: e.Event) -> SessionState:
    return b.fold(*b.first_round(1.0, mode="ask"), e.IncumbentChanged("k1", "", m.Succession.FIRST), *events)


def timing_text(state: SessionState) -> str:
    return "\n".join(one.text for one in timing.page(state, state.kernels["k1"], 120))


def test_the_timing_pane_shows_what_is_recorded() -> None:
    assert "not measured" in timing_text(session())
    shown = timing_text(session(e.KernelSustained("k1", 0, b.sustained(0.5, doubts=("reused",)))))
    assert "0.50×" in shown
    assert "reused" in shown
    assert "The regimes disagree" in shown


def test_progress_tells_times_doubts_and_why_there_are_none() -> None:
    state = session()

    def told(event: e.Event) -> str:
        return "\n".join(plain(line) for line in progress.lines(state, e.Entry(0, b.START, m.ENGINE, event), state))

    assert "k1 back to back: 0.93×" in told(e.KernelSustained("k1", 0, POWER))
    assert "not measured back to back: it has state" in told(e.KernelSustained("k1", 0, note="it has state"))
    race = e.KernelRaced("k1", "k2", m.RaceOutcome.FASTER, b.interval(1.2), 0, 3, 9000, back_to_back=True)
    assert "3 process pairs, back to back" in told(race)


def test_the_table_of_results_has_the_sustained_ratio() -> None:
    assert results.sustained(BOTH, "eager") == "0.93× [0.91, 0.95]"
    assert results.sustained(b.measurement(1.0), "eager") == "not measured"
    assert results.sustained(replace(BOTH, sustained=replace(POWER, corroborated=False)), "eager").startswith("(")
