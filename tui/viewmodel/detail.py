"""Pages on one kernel: idea and lineage, checks, resources. Pure.

The other pages are in ``timing``, ``code`` and ``diff``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.domain import bottleneck, corroboration, hot_code, instruction_mix, profile, queries
from engine.domain.hot_code import HotCode
from engine.domain.mismatch import Mismatch
from engine.domain.mismatch_words import failed_workload_rows, mismatch_rows
from engine.domain.model import FailedWorkload, Resources
from engine.domain.preparation import Preparation
from engine.domain.state import Idea, Kernel, SessionState, Stage
from engine.report.text.progress import sanitizer_names
from engine.report.text.rounds import of_round
from engine.report.text.tree import failure_words
from tui.viewmodel import fmt, kernels, siblings
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, cut, line, one_line, pad, width, wrap
from tui.viewmodel.lineage_lines import LineageLines
from tui.viewmodel.pages import INDENT, empty_page, paragraph, section, table

Cells = tuple[Cell, ...]
_TOTAL = "total"
"""The key of the total among the instruction counts by family."""
_WIDE = 60
"""The room from which figures have wide columns."""
_AROUND_HOT_LINE = 14
"""Columns of a row of the hot code beside its place, its bar and its text."""


def heading(state: SessionState, kernel: Kernel, room: int) -> tuple[Line, ...]:
    """Two lines above every page: the kernel, its outcome and its speedup."""
    best = kernels.incumbent(state)
    is_incumbent = best is not None and best.id == kernel.id
    star = Cell(f"{kernels.INCUMBENT} ", Ink.BEST) if is_incumbent else Cell("")
    ratio = queries.speedup(state, kernel)
    outcome = kernels.outcome(state, kernel)
    name = Cell(cut(kernels.title(state, kernel), max(8, room - len(kernel.id) - 5)), Ink.TITLE)
    facts: list[Cells] = [(outcome.cell,)]
    if ratio is not None and kernel.measurement is not None:
        facts += [(kernels.speedup(kernel, ratio), Cell(f" {fmt.interval_ends(ratio)}", Ink.FAINT)), (_time(kernel),)]
    facts += [(Cell(_origin(kernel), Ink.FAINT),)]
    return (line(" ", star, Cell(f"{kernel.id} ", Ink.BEST if is_incumbent else Ink.STRONG), name), _fitting(facts, room))


def _fitting(facts: Sequence[Cells], room: int) -> Line:
    """As many facts as fit, separated by dots."""
    shown: list[Cell] = []
    used = 1
    for fact in facts:
        needed = sum(width(c.text) for c in fact) + (3 if shown else 0)
        if used + needed > room:
            break
        shown += ([Cell(" · ", Ink.RULE)] if shown else []) + list(fact)
        used += needed
    return line(" ", *shown)


def _time(kernel: Kernel) -> Cell:
    assert kernel.measurement is not None
    return Cell(fmt.duration(kernel.measurement.time_us.value))


def _origin(kernel: Kernel) -> str:
    parts = (f"{kernel.dialect.value}, {kernel.contract.value} contract", one_line(fmt.tunables(kernel.tunables)))
    return " · ".join(filter(None, parts))


def idea(state: SessionState, kernel: Kernel, room: int, lineage: LineageLines) -> tuple[Line, ...]:
    """The kernel's idea and its lineage."""
    lines: list[Line] = [BLANK]
    behind = state.ideas.get(kernel.idea)
    lines += _idea(state, kernel, behind, room) if behind else [line(Cell("  seed kernel without an idea", Ink.FAINT))]
    lines += _history(state, kernel, room)
    lines += [BLANK, section("lineage", room), *lineage.lines(state, kernel, room)]
    notes = [n for n in state.notes if n.target in (kernel.id, kernel.idea)]
    if notes:
        lines += [BLANK, section("notes", room)]
        for note in notes:
            lines += paragraph(f"{fmt.moment(note.at, state.opened_at)} {note.by}: {note.text}", room)
    return tuple(lines)


def _idea(state: SessionState, kernel: Kernel, behind: Idea, room: int) -> list[Line]:
    title = wrap(behind.text.title, room - 4) if width(one_line(behind.text.title)) > room - 12 else []
    head = [line(Cell(f"{INDENT}{part}", Ink.TITLE)) for part in title]
    ratio = behind.text.predicted
    predicted = Cell(f"{fmt.ratio(ratio)} over its parent") if ratio is not None else Cell("–", Ink.FAINT)
    rows: list[tuple[str, Sequence[Cell]]] = [
        ("idea", (Cell(behind.id, Ink.STRONG), Cell(f" {of_round(state, behind.round)}{', edited' if behind.edited else ''}"))),
        ("category", (Cell(one_line(behind.text.category)),)),
        ("author", (Cell(one_line(behind.author.name)),)),
        ("parent", kernels.label(state, behind.parent)),
        ("predicted", (predicted,)),
    ]
    if (gain := measured_gain(state, kernel)) is not None:
        rows.append(("measured", gain))
    more = (("expected", behind.text.expected), ("risks", behind.text.risks))
    rows += [(name, (Cell(one_line(words)),)) for name, words in more if words]
    why = [*paragraph(f"Strategy: {behind.advice}", room), BLANK] if behind.advice else []
    return [*head, *([BLANK] if head else []), *paragraph(behind.text.rationale, room), BLANK, *why, *table(rows, room)]


def _history(state: SessionState, kernel: Kernel, room: int) -> list[Line]:
    """The kernel's tunables, those that tell it from its siblings first; why its branch is pruned; its failed attempts."""
    label = siblings.labels(state, kernel)[kernel.id]
    rows: list[tuple[str, Sequence[Cell]]] = []
    if kernels.outcome(state, kernel) is kernels.NOT_COMPARED:
        rows.append((kernels.NOT_COMPARED.word, (Cell(kernels.WHY_NOT_COMPARED, Ink.FAINT),)))
    if kernel.tunables:
        rest = fmt.tunables(label.rest)
        rows.append(("tunables", (Cell(fmt.tunables(label.first), Ink.STRONG), Cell(f" {rest}" if label.first else rest))))
    for one in queries.lineage(state, kernel.id):
        if one.id in state.pruned:
            words = f"with {one.id}" if one.id != kernel.id else "here"
            reason = one_line(state.prune_reasons.get(one.id, ""))
            rows.append(("pruned", (Cell(f"{kernels.PRUNED} {words}: ", Ink.WARN), Cell(reason or "no reason given"))))
    if kernel.failures:
        rows.append(("attempts", (Cell(f"{kernel.attempt + 1}, {len(kernel.failures)} failed"),)))
    for number, failure in enumerate(kernel.failures, 1):
        words = f"{failure_words(failure.kind)}: {one_line(failure.reason)}"
        rows.append((f"attempt {number}", (Cell(words, Ink.FAINT),)))
    return [BLANK, section("kernel", room), *table(rows, room)] if rows else []


def measured_gain(state: SessionState, kernel: Kernel) -> Cells | None:
    """The measured speedup over the parent, if both were measured on this device."""
    mine = queries.speedup(state, kernel)
    parent = state.kernels.get(kernel.parent) if kernel.parent else None
    theirs = queries.speedup(state, parent) if parent else None
    if mine is None or theirs is None or theirs.value <= 0:
        return None
    gain = mine.value / theirs.value
    ink = Ink.FASTER if mine.low > theirs.high else Ink.SLOWER if mine.high < theirs.low else Ink.UNDECIDED
    return (Cell(f"{fmt.ratio(gain)} over {kernel.parent}", ink),)


def checks(state: SessionState, kernel: Kernel, room: int) -> tuple[Line, ...]:
    """The kernel's errors against the tolerance, or why it failed."""
    lines: list[Line] = [*_quarantine(kernel, room), *_not_corroborated(kernel, room), BLANK]
    if kernel.failure is not None:
        lines += [*paragraph(kernel.failure.reason, room), BLANK]
        lines += _failed_workload(kernel.failure.failed_on, room)
        lines += _mismatches(kernel.failure.mismatches, room)
    found = kernel.verification
    if found is None:
        return tuple(lines) if kernel.failure or kernel.evidence else empty_page("not verified yet")
    bit_for_bit = found.jitter == 0
    tolerance = fmt.policy_words(found.policy)
    rows: list[tuple[str, Sequence[Cell]]] = [
        (
            "class",
            (Cell(found.precision_class.value, Ink.STRONG), Cell(f", tolerance {tolerance}", Ink.FAINT)),
        ),
        ("trials", (Cell(f"{fmt.counted(found.trials, 'call')} checked against float64"),)),
        ("hold-out shapes", (Cell(one_line(found.holdouts), Ink.WARN if "specialised" in found.holdouts else Ink.PLAIN),)),
        ("centred error", _error_meter(found.rel_fro, found.rel_fro_limit, room)),
        ("worst element", _error_meter(found.max_scaled, found.max_scaled_limit, room)),
        ("largest error", (Cell(fmt.error(found.max_abs)), Cell(" absolute", Ink.FAINT))),
        (
            "repeatable",
            (Cell("bit for bit") if bit_for_bit else Cell(f"to {fmt.error(found.jitter)} of the scale", Ink.WARN),),
        ),
    ]
    if found.chance:
        rows.insert(3, ("random", (Cell(one_line(found.chance), Ink.FAINT),)))
    rows += [("caveat", (Cell(one_line(caveat), Ink.WARN),)) for caveat in found.caveats]
    lines += table(rows, room)
    lines += _sanitized(kernel, room)
    if (prepared := state.preparation) is not None:
        lines += [BLANK, section("correctness check of this session", room), *_correctness_check(prepared)]
    return tuple(lines)


def _failed_workload(failed: FailedWorkload | None, room: int) -> list[Line]:
    """Which workload of the suite the kernel failed on, and which it passed."""
    rows = [(label, (Cell(one_line(text), _FAILED_INKS[label]),)) for label, text in failed_workload_rows(failed)]
    return [section("suite", room), *table(rows, room), BLANK] if rows else []


_FAILED_INKS = {"failed on": Ink.BAD, "passed": Ink.GOOD, "not tried": Ink.FAINT}


def _mismatches(found: Sequence[Mismatch], room: int) -> list[Line]:
    """Where the outputs were wrong, how, and on which inputs."""
    lines: list[Line] = []
    for one in found:
        lines += [section(f"where {one_line(one.output)} is wrong", room)]
        rows = [(label, (Cell(one_line(text), _MISMATCH_INKS.get(label, Ink.PLAIN)),)) for label, text in mismatch_rows([one])]
        lines += [*table(rows, room), BLANK]
    return lines


_MISMATCH_INKS = {"wrong": Ink.BAD, "where": Ink.STRONG, "how": Ink.STRONG}


def _quarantine(kernel: Kernel, room: int) -> list[Line]:
    """Why the kernel is or was quarantined, and what the engineer decided."""
    if not kernel.evidence:
        return []
    waits = kernel.stage is Stage.QUARANTINED
    lines = [BLANK, section("quarantined" if waits else "was quarantined", room)]
    for one in kernel.evidence:
        parts = wrap(one, min(room - 6, 96))
        lines += [line(Cell("  ◬ " if n == 0 else "    ", Ink.QUARANTINED), part) for n, part in enumerate(parts)]
    if kernel.accepted:
        parts = wrap(f"accepted by the engineer: {kernel.accepted}", min(room - 6, 96))
        lines += [line(Cell("  ✓ " if n == 0 else "    ", Ink.GOOD), part) for n, part in enumerate(parts)]
    elif waits:
        words = "It cannot become the incumbent or a parent until you accept or discard it."
        lines += [line(Cell(f"  {part}", Ink.FAINT)) for part in wrap(words, room - 4)]
    return lines


def _not_corroborated(kernel: Kernel, room: int) -> list[Line]:
    """Why the kernel's time is no result."""
    if not corroboration.is_doubted(kernel) or corroboration.is_quarantined(kernel):
        return []
    lines = [BLANK, section("not corroborated", room)]
    for one in corroboration.of_kernel(kernel):
        parts = wrap(one, min(room - 6, 96))
        lines += [line(Cell("  ? " if n == 0 else "    ", Ink.WARN), part) for n, part in enumerate(parts)]
    words = "Its outputs are right, its time is no result: it cannot become the incumbent. Remeasure it."
    return [*lines, *(line(Cell(f"  {part}", Ink.FAINT)) for part in wrap(words, room - 4))]


def _sanitized(kernel: Kernel, room: int) -> list[Line]:
    """The sanitizers' findings on this code or on an earlier attempt."""
    found = kernel.sanitizing
    if found is None:
        return []
    lines = [BLANK, section("sanitizers", room)]
    earlier = f", on attempt {found.attempt + 1} of {kernel.attempt + 1}" if found.attempt != kernel.attempt else ""
    if not found.tools:
        verdict = Cell("did not run", Ink.WARN)
    elif found.findings:
        verdict = Cell(f"✗ {fmt.counted(len(found.findings), 'finding')}", Ink.BAD)
    else:
        verdict = Cell("✓ clean", Ink.GOOD)
    tools = one_line(sanitizer_names(found.tools)) if found.tools else ""
    lines += [line("  ", verdict, Cell(f"  {tools}{earlier}", Ink.FAINT))]
    lines += [line(Cell(f"  {part}", Ink.BAD)) for one in found.findings for part in wrap(one, min(room - 4, 96))]
    lines += [line(Cell(f"  {part}", Ink.FAINT)) for part in wrap(found.note, min(room - 4, 96))]
    return lines


def _correctness_check(prepared: Preparation) -> list[Line]:
    """Reference error by precision class, and the trivial models that the check rejected."""
    rows: list[tuple[str, Sequence[Cell]]] = [
        (f"reference in {name}", (Cell(fmt.error(found.rel_fro)), Cell(" centred error", Ink.FAINT)))
        for name, found in prepared.gate.classes.items()
    ]
    passed, rejected = Cell("✗ passed", Ink.BAD), Cell("✓ rejected", Ink.GOOD)
    rows += [
        (f"trivial: {one_line(trivial.name)}", (passed if trivial.passed else rejected,)) for trivial in prepared.gate.nulls
    ]
    confined = prepared.sandbox == "bubblewrap"
    sandbox = Cell("bubblewrap" if confined else "none, resource limits only", Ink.PLAIN if confined else Ink.WARN)
    return table([*rows, ("sandbox", (sandbox,))])


def _error_meter(value: float, limit: float, room: int) -> Cells:
    """A meter of the error against its limit, with both figures."""
    share = value / limit if limit > 0 else float(value > 0)
    ink = Ink.GOOD if share <= 0.5 else Ink.WARN if share <= 1 else Ink.BAD
    figures = (Cell(f" {fmt.error(value)}"), Cell(f" of {fmt.error(limit)}", Ink.FAINT), Cell(f" ({fmt.percent(share)})", ink))
    return (*fmt.meter(share, max(6, min(24, room - 52)), ink), *figures)


def resources(state: SessionState, kernel: Kernel, room: int) -> tuple[Line, ...]:
    """Resources, counters and instruction mix, with changes from the parent."""
    mix = kernel.instructions
    if not kernel.resources and not mix and kernel.profile is None:
        return empty_page("not built yet" if not kernel.artefact else "the compiler reports no resources")
    parent = state.kernels.get(kernel.parent) if kernel.parent else None
    before = {r.function: r for r in parent.resources} if parent else {}
    lines: list[Line] = []
    for used in kernel.resources:
        earlier = before.get(used.function)
        if earlier is None and len(before) == 1 == len(kernel.resources):
            earlier = next(iter(before.values()))
        lines += [
            BLANK,
            section(one_line(used.function), room),
            *_used(state, used, earlier, parent.id if parent else "", room),
        ]
    lines += _counters(state, kernel, parent, room)
    lines += [BLANK, section("instructions", room)]
    if not mix:
        return (*lines, line(Cell("  not recorded for this kernel", Ink.FAINT)))
    parents_mix = parent.instructions or None if parent else None
    sol = kernel.measurement.light if kernel.measurement else None
    summary = instruction_mix.summary(kernel.resources, mix, sol, before=parents_mix)
    lines += [*_mix(mix, parents_mix, room), BLANK, section("summary", room), *paragraph(summary, room)]
    return tuple(lines)


def _counters(state: SessionState, kernel: Kernel, parent: Kernel | None, room: int) -> list[Line]:
    """The hardware counters of one call and their summary, and the hot code, if ``espalier kernel profile`` recorded them."""
    found = kernel.profile
    if found is None:
        return []
    hot = _hot_lines(found.hot, room) if found.hot is not None else []
    lines = [*hot, BLANK, section("counters", room)]
    if not found.tool:
        return [
            *lines,
            *(line(Cell(f"  {part}", Ink.WARN)) for part in wrap(f"not available: {found.note}", min(room - 4, 96))),
        ]
    rows: list[tuple[str, Sequence[Cell]]] = [
        (one_line(row.label), (Cell(pad(row.words, 12)), Cell(row.moved, Ink.FAINT)))
        for row in profile.rows(found, parent.profile if parent else None)
    ]
    words = bottleneck.summary(found, state.preparation.bytes_moved if state.preparation else 0)
    return [*lines, *table(rows), *(paragraph(words, room) if words else ())]


def _hot_lines(hot: HotCode, room: int) -> list[Line]:
    """The hottest source lines with their shares, or the deepest loops."""
    if not hot.samples:
        loops = [part for loop in hot.loops for part in paragraph(one_line(loop.words), room)]
        return [BLANK, section("hot code", room), *loops] if loops else []
    bar = max(6, min(16, room - 60))
    found = tuple(hot_code.rows(hot))
    left = room - bar - max((width(row.place) for row in found), default=0) - _AROUND_HOT_LINE
    rows: list[tuple[str, Sequence[Cell]]] = []
    for row in found:
        text = Cell(cut(one_line(row.text), left), Ink.FAINT)
        rows.append((row.place, (*fmt.meter(row.share, bar, Ink.WARN), Cell(f" {row.words:>5}  "), text)))
    words = f"of {hot.samples:,} samples of the program counter: {hot_code.SKID}"
    return [BLANK, section("hot code", room), *table(rows), *paragraph(words, room)]


def _used(state: SessionState, used: Resources, earlier: Resources | None, parent: str, room: int) -> list[Line]:
    def change(name: str, amount: int, before: int | None, words: str) -> tuple[str, Sequence[Cell]]:
        cells = [Cell(pad(words, 12 if room >= _WIDE else 8))]
        if before is not None:
            cells += [fmt.change(before, amount), Cell(f" from {parent}", Ink.FAINT)]
        return name, cells

    rows = [
        change("registers", used.registers, earlier.registers if earlier else None, str(used.registers)),
        change(
            "shared memory", used.shared_bytes, earlier.shared_bytes if earlier else None, fmt.binary_bytes(used.shared_bytes)
        ),
        change("spills", used.spill_bytes, earlier.spill_bytes if earlier else None, fmt.binary_bytes(used.spill_bytes)),
        change("stack", used.stack_bytes, earlier.stack_bytes if earlier else None, fmt.binary_bytes(used.stack_bytes)),
    ]
    if state.device is not None and state.device.kind == "cuda" and used.registers:
        warps = instruction_mix.warps_by_registers(used.registers)
        rows.append(("occupancy", [Cell(f"{warps} of 64 warps", Ink.STRONG), Cell(", limited by registers", Ink.FAINT)]))
    return table(rows, room)


def _mix(mix: Mapping[str, int], before: Mapping[str, int] | None, room: int) -> list[Line]:
    families = {family: count for family, count in mix.items() if family != _TOTAL}
    most = max(families.values(), default=1) or 1
    gone = {family: 0 for family in before or () if family not in mix}
    rows: list[tuple[str, Sequence[Cell]]] = []
    if _TOTAL in mix:
        moved = [Cell("  "), _count_change(before.get(_TOTAL, 0), mix[_TOTAL])] if before is not None else []
        rows.append(("total", [Cell(pad("", max(6, min(24, room - 44)))), Cell(f" {mix[_TOTAL]:>6}", Ink.STRONG), *moved]))
    for family, count in sorted({**families, **gone}.items(), key=lambda item: -item[1]):
        shape = fmt.meter(count / most, max(6, min(24, room - 44)))
        moved = [Cell("  "), _count_change(before.get(family, 0), count)] if before is not None else []
        rows.append((family, [*shape, Cell(f" {count:>6}"), *moved]))
    return table(rows)


def _count_change(before: int, after: int) -> Cell:
    """The change of an instruction count; neither direction is better in itself."""
    return (
        Cell(f"{'▼' if after < before else '▲'} {abs(after - before)}", Ink.ACCENT) if after != before else Cell("=", Ink.FAINT)
    )
