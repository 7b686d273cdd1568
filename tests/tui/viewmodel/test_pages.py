"""Pages on a kernel, idea cards, header, strip, event log, notes, charts and transport."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain.hot_code import HotCode, HotLoop
from engine.domain.model import Dialect
from engine.domain.profile import Profile
from engine.domain.settings import Limits, Mode
from engine.domain.state import CallStatus, IdeaStatus, Kernel, SessionState, Stage
from engine.domain.work import WorkKey
from tui.viewmodel import (
    cells,
    code,
    diff,
    estimate,
    event_log,
    fmt,
    heading,
    ideas,
    pages,
    stages,
    tabs,
    timing,
    transport,
    usage,
)
from tui.viewmodel.cells import Ground, Line
from tui.viewmodel.tabs import Tab

STATE, LOG = showcase.session()


def text(lines: tuple[Line, ...] | list[Line]) -> str:
    return "\n".join(line.text for line in lines)


def page(tab: Tab, kernel: str, other: str = "", room: int = 90, state: SessionState = STATE) -> str:
    subject = tabs.PageSubject(state, state.kernels[kernel], other, showcase.BLOBS.get)
    return text(tabs.page(tab, subject, room))


@pytest.mark.parametrize("tab", list(Tab))
@pytest.mark.parametrize("kernel", sorted(STATE.kernels))
def test_every_page_of_every_kernel_at_narrow_and_wide_widths(tab: Tab, kernel: str) -> None:
    for room in (20, 40, 200):
        assert page(tab, kernel, room=room)


def test_the_idea_page_compares_prediction_and_measurement() -> None:
    output = page(Tab.IDEA, "k12")
    assert "predicted  1.35× over its parent" in output
    assert "measured   1.33× over k7" in output
    assert [line.split()[-5:][0] for line in output.splitlines() if "╰─" in line]
    assert output.index("k1 Naive port") < output.index("k3 Split rows") < output.index("k7 Stream")


def test_foreign_text_is_shown_literally() -> None:
    assert "markup: [b]x[/b]]" in page(Tab.IDEA, "k12")
    assert "[bold red]this is not markup[/bold red] ␛[31mnor an escape" in page(Tab.LOG, "k6")


def test_a_compiler_that_printed_nothing_says_so() -> None:
    subject = tabs.PageSubject(STATE, replace(STATE.kernels["k12"], build_log="log"), "", lambda _: "\n")
    assert text(tabs.page(Tab.LOG, subject, 90)).split("\n")[-1] == "  no output"


def test_verification_shows_errors_as_a_share_of_their_limits() -> None:
    output = page(Tab.CHECKS, "k12")
    assert "9.0e-08 of 1.0e-06 (9%)" in output
    assert "hold-out shapes" in output
    assert "✓ rejected" in output
    assert "4.1e-03 at out[17, 9031]" in page(Tab.CHECKS, "k5")


def test_timing_draws_samples_and_intervals() -> None:
    output = page(Tab.TIMING, "k12")
    assert "2.30 ms [2.29, 2.31]" in output
    assert "├●┤" in output
    assert "160 samples" in output
    assert "█" in output


def test_timing_says_that_parent_and_incumbent_are_compared_with_the_baseline() -> None:
    shown = page(Tab.TIMING, "k13").splitlines()
    heading = shown.index("  other kernels over eager")
    assert shown[heading - 1].startswith("  × ")
    assert shown[heading + 1].startswith("  parent k7 ")
    assert "other kernels" not in page(Tab.TIMING, "k1", state=replace(STATE, incumbent="k1"))


def test_timing_with_missing_samples() -> None:
    subject = tabs.PageSubject(STATE, STATE.kernels["k12"], "", lambda _: None)
    assert "missing from the session folder" in text(tabs.page(Tab.TIMING, subject, 90))


def test_resources_are_compared_with_the_parent() -> None:
    without_mix = page(Tab.RESOURCES, "k12")
    assert "registers      66          ▲ 15 from k7" in without_mix
    assert "not recorded for this kernel" in without_mix
    mixes = {"k12": {"fma": 10}, "k7": {"fma": 12}}
    kernels = {name: replace(kernel, instructions=mixes.get(name, {})) for name, kernel in STATE.kernels.items()}
    subject = tabs.PageSubject(replace(STATE, kernels=kernels), kernels["k12"], "", showcase.BLOBS.get)
    assert "▼ 2" in text(tabs.page(Tab.RESOURCES, subject, 90))


def test_the_diff_is_against_the_parent_or_the_marked_kernel() -> None:
    assert "k7 (parent) → k12   +3 −1" in page(Tab.DIFF, "k12")
    assert "k1 (marked) → k12" in page(Tab.DIFF, "k12", other="k1")
    assert "k7 (parent) → k12" in page(Tab.DIFF, "k12", other="k12")
    assert "a root kernel has no parent" in page(Tab.DIFF, "k1")


@pytest.mark.parametrize("room", [30, 56, 90])
def test_why_a_page_is_empty_is_read_without_scrolling(room: int) -> None:
    subject = tabs.PageSubject(STATE, STATE.kernels["k1"], "", lambda blob: None)
    readable = replace(subject, read=showcase.BLOBS.get)
    found = [tabs.page(Tab.DIFF, readable, room), tabs.page(Tab.CODE, subject, room)]
    for lines in (*found, usage.page(replace(STATE, calls={}), room)):
        assert max(cells.width(one.text) for one in lines) <= room


def test_counters_are_compared_with_the_parent_or_show_why_they_are_missing() -> None:
    kernel, parent = (replace(STATE.kernels[k], profile=b.profile(us)) for k, us in (("k12", 812.25), ("k7", 1000.0)))

    def output(kernel: Kernel) -> str:
        state = replace(STATE, kernels={**STATE.kernels, kernel.id: kernel, parent.id: parent})
        found = text(tabs.page(Tab.RESOURCES, tabs.PageSubject(state, kernel, "", showcase.BLOBS.get), 90))
        return " ".join(found.split())

    assert "duration 812.2 us from 1000 us" in output(kernel)
    assert "stalls: barrier 30% unchanged" in output(kernel)
    unavailable = replace(kernel, profile=Profile(0, note="only administrators may"), resources=())
    assert "not available: only administrators may" in output(unavailable)
    on_cpu = Profile(0, "perf", "a processor", 1, {"instructions": 2.5e9, "cycles": 1e9, "ipc": 2.5, "calls": 40.0})
    assert "instructions 2.5 G" in output(replace(kernel, profile=on_cpu))
    assert "2.50 instructions a cycle: the cores are busy." in output(replace(kernel, profile=on_cpu))


PIECES = ["a = 1;", "b = 2;", "", "  for (;;) {}", "// c", "/* d", "x\ty"]
SOURCES = st.lists(st.sampled_from(PIECES), max_size=12).map("\n".join)


@given(SOURCES, SOURCES)
def test_a_diff_with_full_context_contains_both_texts(before: str, after: str) -> None:
    found = diff.difference(before, after, Dialect.CPP, context=1000)
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        assert found.lines == ()
        return
    grounds = [line.ground for line in found.lines]
    assert grounds.count(Ground.ADDED) == found.added
    assert grounds.count(Ground.REMOVED) == found.removed
    assert len(old) - found.removed == len(new) - found.added == grounds.count(Ground.NONE)


@given(SOURCES)
def test_highlighting_changes_no_text(source: str) -> None:
    shown = [line.text for line in code.highlight(source, Dialect.CPP)]
    expected = [part.expandtabs(4) if part.strip() else part for part in source.split("\n")]
    while expected and not expected[-1]:
        expected.pop()
    assert [s.split() for s in shown] == [x.split() for x in expected]


def test_changed_words_of_a_changed_line_are_highlighted() -> None:
    found = diff.difference("int n = 4;", "int n = 8;", Dialect.CPP)
    marked = [c.text for line in found.lines for c in line.cells if c.ground in (Ground.ADDED_WORD, Ground.REMOVED_WORD)]
    assert marked == ["4", "8"]


EMPTY_ROW = '{"columns": ["claimed"], "pairs": [{"kernel": [[]]}]}'


@pytest.mark.parametrize("raw", ["", "{}", "[]", "null", '{"columns": ["wall"], "pairs": []}', EMPTY_ROW])
def test_malformed_samples_are_ignored(raw: str) -> None:
    assert not timing.claimed_times(raw)


def test_samples_are_read_by_column() -> None:
    pairs = [{"kernel": [[9, 1], [9, 2]]}, {"kernel": [[9, 3]]}]
    raw = json.dumps({"unit": "us", "columns": ["wall", "claimed"], "pairs": pairs})
    assert timing.claimed_times(raw) == {"kernel": [1.0, 2.0, 3.0]}


@given(st.integers(20, 240))
def test_the_header_and_the_strip_fit_their_width(room: int) -> None:
    lines = (*heading.lines(STATE, heading.SessionStatus(note="replay"), max(44, room)), *stages.strip(STATE, {}, room))
    assert all(line.width <= max(44, room) for line in lines)


@pytest.mark.parametrize(
    ("changes", "standing", "output"),
    [
        ({}, heading.SessionStatus(), "◇ 1 idea waits for you"),
        ({}, heading.SessionStatus(deadline=130.0, now=100.0), "auto-approve in 30 s"),
        ({"mode": Mode("autopilot")}, heading.SessionStatus(), "autopilot"),
        ({"mode": Mode("autopilot")}, heading.SessionStatus(stopped=True), "stopped"),
        ({"closed": "enough"}, heading.SessionStatus(), "ended"),
        ({"broken": {WorkKey.parse("propose:6"): "silent"}}, heading.SessionStatus(), "stopped"),
        ({}, heading.SessionStatus(note="following"), "following"),
    ],
)
def test_the_mode_is_always_shown(changes: dict[str, object], standing: heading.SessionStatus, output: str) -> None:
    state = replace(STATE, **changes)  # type: ignore[arg-type]  # fields by name
    first, _ = heading.lines(state, standing, 80)
    assert output in first.text


@pytest.mark.parametrize("room", [40, 60, 80, 120, 200])
def test_session_workload_proposer_and_who_waits_are_always_in_sight(room: int) -> None:
    first, second = heading.lines(STATE, heading.SessionStatus(name="night-run"), room)
    assert all(words in first.text for words in ("night-", " small", "gpt-t", "for you"))
    assert "2.83× eager" in second.text
    assert "1.92 ms" in second.text


@pytest.mark.parametrize(
    ("limits", "left", "words"),
    [
        (Limits(rounds=3), "", "decision 1, 26 kernels to go ·"),
        (Limits(rounds=3), "≈ 5 min", "decision 1, ≈ 5 min left, 26 kernels to go ·"),
        (Limits(rounds=3, kernels=3), "", "decision 1, 1 kernel to go ·"),
        (Limits(rounds=None), "", "decision 1 ·"),
    ],
)
def test_the_adaptive_strategy_counts_kernels_in_the_header(limits: Limits, left: str, words: str) -> None:
    second = (
        e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1, parent="k1"), e.IdeaSelected("i2"),
        b.drafted("k2", idea="i2", parent="k1", round_number=1),
    )  # fmt: skip
    state = replace(b.fold(*b.first_round(strategy="adaptive"), *second), limits=limits)
    first, _ = heading.lines(state, heading.SessionStatus(round_left=left), 200)
    assert words in first.text


def test_an_ended_session_has_no_kernels_to_go() -> None:
    opened = b.fold(*b.first_round(strategy="adaptive"))
    first, _ = heading.lines(replace(opened, closed="no further ideas"), heading.SessionStatus(), 200)
    assert "decision 0 ·" in first.text
    assert "to go" not in first.text


def test_the_headline_reads_as_one_figure_after_the_other() -> None:
    _, second = heading.lines(STATE, heading.SessionStatus(), 120)
    assert second.text.startswith(" ★ k14 2.83× eager [2.81, 2.85] · 1.92 ms · 61% SOL · Reduce in eight")


@pytest.mark.parametrize(
    ("sustained", "room", "words"),
    [(2.82, 200, "· sustained 2.82×"), (2.82, 90, ""), (1.4, 90, "· sustained 1.40×")],
)
def test_the_headline_has_the_sustained_speedup_first_where_it_contradicts(sustained: float, room: int, words: str) -> None:
    leader = STATE.kernels["k14"]
    assert leader.measurement is not None
    measured = replace(leader.measurement, sustained=b.sustained(sustained))
    state = replace(STATE, kernels={**STATE.kernels, "k14": replace(leader, measurement=measured)})
    text = heading.lines(state, heading.SessionStatus(), room)[1].text
    assert words in text if words else "sustained" not in text


def open_call(**changes: object) -> dict[str, object]:
    """Fields of the state: no idea waits, and one open call."""
    call = replace(next(iter(STATE.calls.values())), status=CallStatus.OPEN, **changes)  # type: ignore[arg-type]
    ideas = {name: replace(idea, status=IdeaStatus.REJECTED) for name, idea in STATE.ideas.items()}
    return {"calls": {call.id: call}, "ideas": ideas}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (open_call(), "waits for gpt-test"),
        (open_call(model="paste"), "1 prompt waits for you"),
        ({**open_call(), "mode": Mode("autopilot")}, "▸▸ autopilot · waits for gpt-test · 1 quarantined waits for you"),
        ({**open_call(), "paused": "lunch"}, "‖ paused: lunch"),
        ({"closed": "enough"}, "■ ended"),
    ],
)
def test_the_header_tells_who_waits_for_whom(changes: dict[str, object], words: str) -> None:
    state = replace(STATE, **changes)  # type: ignore[arg-type]  # fields by name
    assert words in heading.lines(state, heading.SessionStatus(), 160)[0].text


MEANS = {"build": 4.0, "verify": 2.0, "measure": 10.0, "implement": 30.0}


def test_the_estimate_counts_what_the_device_does_in_turn_and_the_longest_work_beside_it_once() -> None:
    assert estimate.round_left(STATE, {"build": 4.0}, {}) is None, "nothing was measured yet"
    left = estimate.round_left(STATE, MEANS, {})
    waiting = [kernel.stage for kernel in STATE.kernels.values() if not kernel.stage.settled]
    device = sum({Stage.BUILD: 12.0, Stage.VERIFY: 12.0, Stage.MEASURE: 10.0}[stage] for stage in waiting)
    written = sum(12.0 * i.branch for i in STATE.ideas.values() if i.status is IdeaStatus.SELECTED and not i.implemented)
    assert left == device + written + (34.0 if written else 4.0)
    assert estimate.round_left(STATE, MEANS, {WorkKey.parse("measure:k18:0"): 99.0}) == left - 10.0
    assert estimate.round_left(replace(STATE, paused="lunch"), MEANS, {}) is None


@pytest.mark.parametrize(("seconds", "words"), [(3, "≈ 10 s"), (41, "≈ 50 s"), (61, "≈ 2 min"), (3601, "≈ 1 h 10 min")])
def test_an_estimate_is_coarse(seconds: float, words: str) -> None:
    assert fmt.about(seconds) == words


def test_the_strip_counts_kernels_by_stage() -> None:
    found = stages.counts(STATE)
    assert (found.building, found.verifying, found.measuring, found.queued) == (1, 1, 1, 1)
    assert (found.measured, found.failed, found.cancelled, found.undecided) == (12, 4, 1, 1)
    assert "k18 pair 2 of 4" in stages.strip(STATE, {WorkKey.parse("measure:k18:0"): "pair 2 of 4"}, 200)[1].text


@pytest.mark.parametrize("room", [80, 120, 200])
def test_the_strip_keeps_the_counts_of_outcomes(room: int) -> None:
    counts = stages.strip(STATE, {}, room)[0]
    assert counts.width <= room
    assert "4 failed" in counts.text
    assert "1 cancel" in counts.text


@pytest.mark.parametrize(("work", "words"), [("prepare", "preparation under way"), ("build:k20:0", "k20 building")])
def test_running_work_is_said_once(work: str, words: str) -> None:
    state = replace(STATE, started={WorkKey.parse(work): 1})
    assert stages.strip(state, {}, 80)[1].text.strip() == words


def test_open_ideas_come_first_after_an_explicit_order() -> None:
    assert [i.id for i in ideas.ideas_in_order(STATE, None)] == ["i12", "i10", "i11"]
    assert [i.id for i in ideas.ideas_in_order(STATE, None, ("i11",))] == ["i11", "i12", "i10"]
    assert [i.id for i in ideas.ideas_in_order(STATE, 3)] == ["i7", "i8"]


def test_a_card_shows_prediction_parent_and_status() -> None:
    output = text(ideas.card(STATE, STATE.ideas["i10"], 100))
    assert "predicted 1.08×" in output
    assert "on k14 ▲ 2.83×" in output
    assert "2 kernels" in output
    assert "approved" in output
    assert all(line.width <= 100 for line in ideas.card(STATE, STATE.ideas["i10"], 100))


def test_a_rejected_idea_shows_the_reason() -> None:
    state = b.fold(*b.first_round(), b.proposed("i2", parent="k1"), e.IdeaRejected("i2", "too wide"))
    assert "rejected: too wide" in text(ideas.card(state, state.ideas["i2"], 80))


def test_the_event_log_names_every_incumbent_in_turn() -> None:
    _, lines = event_log.append(event_log.EMPTY, LOG)
    incumbents = [line.text.split()[2] for line in lines if "is the incumbent" in line.text]
    assert incumbents == ["k1", "k2", "k3", "k7", "k12", "k14"]


def test_the_event_log_does_not_depend_on_batches() -> None:
    _, whole = event_log.append(event_log.EMPTY, LOG)
    log, parts = event_log.EMPTY, []
    for entry in LOG:
        log, lines = event_log.append(log, (entry,))
        parts += lines
    assert parts == whole


def test_only_the_end_of_a_long_event_log_is_shown() -> None:
    many = b.entries([*b.first_round(), *(e.NoteAdded("", f"note {n}") for n in range(event_log.MOST_ENTRIES + 50))])
    _, lines = event_log.append(event_log.EMPTY, many)
    assert "earlier events" in lines[0].text
    assert len(lines) == event_log.MOST_ENTRIES + 1


DAY = 86_400.0


def test_the_event_log_shows_a_change_of_date() -> None:
    entries = b.entries([*b.first_round(), *(e.NoteAdded("", f"note {n}") for n in range(3))])
    late = [*entries[:-2], *(replace(entry, at=entry.at + 2 * DAY) for entry in entries[-2:])]
    log, lines = event_log.append(event_log.EMPTY, late)
    days = [n for n, one in enumerate(lines) if "──" in one.text]
    assert [lines[n].text.strip(" ─") for n in days] == [fmt.day(b.START + 2 * DAY)]
    assert "note 0" in lines[days[0] - 1].text
    assert "note 1" in lines[days[0] + 1].text
    again = replace(late[-1], seq=late[-1].seq + 1, at=late[-1].at + DAY)
    _, more = event_log.append(log, [again])
    assert fmt.day(again.at) in more[0].text
    _, same = event_log.append(event_log.log_at(log.state), [replace(again, at=late[-1].at)])
    assert "──" not in same[0].text


def test_a_note_of_another_day_shows_the_date() -> None:
    later = [replace(note, at=note.at + DAY) for note in STATE.notes]
    state = replace(STATE, notes=(*STATE.notes[:1], *later[1:]))
    output = text(pages.notes(state, 80))
    assert output.count(fmt.day(STATE.opened_at + DAY)) == len(later) - 1
    assert fmt.day(STATE.opened_at) not in output
    assert max(len(one) for one in output.splitlines()) <= 80


def test_notes_newest_first_and_by_target() -> None:
    output = text(pages.notes(STATE, 80))
    assert output.index("branch predictor") < output.index("write counters")
    assert "no notes" in text(pages.notes(replace(STATE, notes=()), 80))


@given(st.integers(0, 500), st.integers(30, 200), st.integers(0, 500))
def test_a_click_on_the_track_seeks_to_the_position_shown(position: int, room: int, length: int) -> None:
    position = min(position, length)
    bar = transport.bar(transport.Transport(position, length, False, 1.0), room)
    at = bar.line.text.index("●")
    found = transport.position_at(at, bar, length)
    assert found is not None
    assert abs(found - position) <= length / (bar.room - 1)
    assert transport.position_at(bar.start - 1, bar, length) is None


def test_speeds_step_up_and_down_and_stop_at_the_ends() -> None:
    assert transport.next_speed(1, faster=True) == 2
    assert transport.next_speed(0.25, faster=False) == 0.25
    assert transport.next_speed(64, faster=True) == 64


@pytest.mark.parametrize("room", [20, 30, 40, 60, 80, 120])
def test_running_work_is_shown_whole_and_the_rest_counted(room: int) -> None:
    words = {WorkKey.parse(key): "pair 2 of 4" for key in ("measure:k18:0", "verify:k19:0", "build:k20:0")}
    shown = stages.strip(STATE, words, room)[1].text
    assert cells.width(shown) <= room
    parts = shown.split(" │ ")
    named = [part for part in parts if not part.startswith("+")]
    assert len(named) + sum(int(part) for part in parts if part.startswith("+")) == 3
    assert all("pair 2 of 4" in part for part in named) or room == 20


@pytest.mark.parametrize("shown", list(Tab))
@pytest.mark.parametrize(
    ("room", "named", "numbered"),
    [(40, False, True), (43, True, False), (56, True, False), (57, True, True), (100, True, True)],
)
def test_tabs_have_whole_names_or_none(room: int, named: bool, numbered: bool, shown: Tab) -> None:
    found = tabs.tab_line(shown, room)
    assert [tab for _, _, tab in found.places] == list(Tab)
    assert cells.width(found.line.text) <= room
    for number, (start, end, tab) in enumerate(found.places, 1):
        words = found.line.text[start:end].split()
        assert words == [str(number)] * numbered + [tab.value] * (named or tab is shown)


@pytest.mark.slow
def test_view_models_import_no_toolkit() -> None:
    folder = Path(cells.__file__).parent
    imports = "\n".join(f"import tui.viewmodel.{path.stem}" for path in sorted(folder.glob("*.py")))
    program = f"import sys\n{imports}\nprint({{'textual', 'rich', 'torch'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_text_on_a_page_without_a_width_is_wrapped_at_words() -> None:
    assert [one.text.strip() for one in pages.paragraph("compiling with line tables", 0)] == ["compiling with line", "tables"]


@pytest.mark.parametrize("room", [38, 57, 100])
def test_the_resources_name_the_hot_code_or_the_loops(room: int) -> None:
    def resources(hot: HotCode) -> str:
        kernel = replace(STATE.kernels["k1"], profile=Profile(0, note="no counters", hot=hot))
        return page(Tab.RESOURCES, "k1", room=room, state=replace(STATE, kernels={**STATE.kernels, "k1": kernel}))

    sampled = resources(b.hot_code(""))
    rows = [line.split() for line in sampled.splitlines() if "%" in line]
    assert [row[0] for row in rows[:3]] == ["line", "libm.so.6", "line"]
    assert "80%" in sampled
    assert "1,000 samples" in sampled
    assert all(cells.width(line) <= room for line in sampled.splitlines())
    static = resources(HotCode(loops=(HotLoop("rows", 2, 10, 11, 12, {"MUFU": 1}),)))
    assert "loop depth 2 (static) of rows, lines 10–11: 12 instructions, MUFU 1" in " ".join(static.split())
    assert "samples" not in static
