"""What there is to say of one kernel, page by page: its idea and lineage, its verification, its machine code. Pure.

The page on timing is ``timing``'s, code and differences are ``code``'s and ``diff``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.build.inspection import summary
from engine.domain import bottleneck, profile, queries
from engine.domain.model import Resources
from engine.domain.preparation import Preparation
from engine.domain.state import Idea, Kernel, SessionState, Stage
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, cut, flat, folded, line, pad, pad_cells, width, wrapped

Cells = tuple[Cell, ...]
INDENT = "  "
_ANY = 10_000
_TOTAL = "total"
"""The count of all instructions among those of the families."""


def section(title: str, room: int) -> Line:
    """A heading with a rule to the edge."""
    rule = "─" * max(0, room - len(title) - 4)
    return line(Cell(f" {title} ", Ink.TITLE), Cell(rule, Ink.RULE))


def nothing(words: str) -> tuple[Line, ...]:
    """A page that has nothing to show says so."""
    return (BLANK, line(Cell(f"  {words}", Ink.FAINT)))


def table(rows: Sequence[tuple[str, Sequence[Cell]]], room: int = _ANY) -> list[Line]:
    """Name and value a line, indented, the values aligned; a value that is too long goes on below itself."""
    widest = max((len(name) for name, _ in rows), default=0)
    lines = (line(Cell(f"{INDENT}{pad(name, widest)}  ", Ink.LABEL), *cells) for name, cells in rows)
    return [part for one in lines for part in folded(one, room, widest + 4)]


def heading(state: SessionState, kernel: Kernel, room: int) -> tuple[Line, ...]:
    """Two lines above every page: which kernel this is and how it stands."""
    best = kernels.incumbent(state)
    leads = best is not None and best.id == kernel.id
    star = Cell(f"{kernels.INCUMBENT} ", Ink.BEST) if leads else Cell("")
    ratio = queries.speedup(state, kernel)
    outcome = kernels.outcome(state, kernel)
    name = Cell(cut(kernels.title(state, kernel), max(8, room - len(kernel.id) - 5)), Ink.TITLE)
    facts: list[Cells] = [(outcome.cell,)]
    if ratio is not None and kernel.measurement is not None:
        facts += [(fmt.speedup(ratio), Cell(f" {fmt.interval_ends(ratio)}", Ink.FAINT)), (_time(kernel),)]
    facts += [(Cell(_origin(kernel), Ink.FAINT),)]
    return (line(" ", star, Cell(f"{kernel.id} ", Ink.BEST if leads else Ink.STRONG), name), _fitting(facts, room))


def _fitting(facts: Sequence[Cells], room: int) -> Line:
    """As many of the facts as fit, with dots between."""
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
    parts = (f"{kernel.dialect.value}, {kernel.contract.value} contract", flat(fmt.tunables(kernel.tunables)))
    return " · ".join(filter(None, parts))


def idea(state: SessionState, kernel: Kernel, room: int) -> tuple[Line, ...]:
    """The idea behind the kernel, then the way from the root to it."""
    lines: list[Line] = [BLANK]
    behind = state.ideas.get(kernel.idea)
    lines += _idea(state, kernel, behind, room) if behind else [line(Cell("  seeded without an idea", Ink.FAINT))]
    lines += [BLANK, section("lineage", room), *_lineage(state, kernel, room)]
    notes = [n for n in state.notes if n.target in (kernel.id, kernel.idea)]
    if notes:
        lines += [BLANK, section("notes", room)]
        for note in notes:
            lines += _paragraph(f"{fmt.moment(note.at, state.opened_at)} {note.by}: {note.text}", room)
    return tuple(lines)


def _idea(state: SessionState, kernel: Kernel, behind: Idea, room: int) -> list[Line]:
    title = wrapped(behind.text.title, room - 4) if width(flat(behind.text.title)) > room - 12 else []
    head = [line(Cell(f"{INDENT}{part}", Ink.TITLE)) for part in title]
    foretold = behind.text.predicted
    predicted = Cell(f"{fmt.ratio(foretold)} over its parent") if foretold is not None else Cell("–", Ink.FAINT)
    rows: list[tuple[str, Sequence[Cell]]] = [
        ("idea", (Cell(behind.id, Ink.STRONG), Cell(f" of round {behind.round}{', edited' if behind.edited else ''}"))),
        ("category", (Cell(flat(behind.text.category)),)),
        ("author", (Cell(flat(behind.author.name)),)),
        ("builds on", kernels.described(state, behind.parent)),
        ("predicted", (predicted,)),
    ]
    if (came := came_true(state, kernel)) is not None:
        rows.append(("came out", came))
    return [*head, *([BLANK] if head else []), *_paragraph(behind.text.rationale, room), BLANK, *table(rows, room)]


def came_true(state: SessionState, kernel: Kernel) -> Cells | None:
    """The speedup over the parent kernel that was found, where both were measured on this device."""
    mine = queries.speedup(state, kernel)
    parent = state.kernels.get(kernel.parent) if kernel.parent else None
    theirs = queries.speedup(state, parent) if parent else None
    if mine is None or theirs is None or theirs.value <= 0:
        return None
    gain = mine.value / theirs.value
    ink = Ink.FASTER if mine.low > theirs.high else Ink.SLOWER if mine.high < theirs.low else Ink.UNDECIDED
    return (Cell(f"{fmt.ratio(gain)} over {kernel.parent}", ink),)


def _paragraph(text: str, room: int) -> list[Line]:
    return [line(f"{INDENT}{part}") for part in wrapped(text, min(room - 4, 96))]


def _lineage(state: SessionState, kernel: Kernel, room: int) -> list[Line]:
    lines = []
    way = queries.lineage(state, kernel.id)
    for depth, ancestor in enumerate(way):
        here = ancestor.id == kernel.id
        ratio = queries.speedup(state, ancestor)
        figure = fmt.speedup(ratio) if ratio else kernels.outcome(state, ancestor).cell
        stroke = "╰─ " if depth else ""
        lead = INDENT + "   " * max(0, min(depth, 12) - 1) + stroke
        name = (
            Cell(lead, Ink.RULE),
            Cell(f"{ancestor.id} ", Ink.STRONG),
            Cell(kernels.title(state, ancestor), Ink.TITLE if here else Ink.PLAIN),
        )
        lines.append(line(*pad_cells(name, max(16, min(room, 100) - 16)), Cell("  "), figure))
    return lines


def verification(state: SessionState, kernel: Kernel, room: int) -> tuple[Line, ...]:
    """How right the kernel was, against what was allowed; or why it failed."""
    lines: list[Line] = [*_doubt(kernel, room), BLANK]
    if kernel.failure is not None:
        lines += [*_paragraph(kernel.failure.reason, room), BLANK]
    found = kernel.verification
    if found is None:
        return tuple(lines) if kernel.failure or kernel.evidence else nothing("not verified yet")
    bit_for_bit = found.jitter == 0
    rows: list[tuple[str, Sequence[Cell]]] = [
        ("class", (Cell(found.precision_class.value, Ink.STRONG), Cell(f", gate {found.policy}", Ink.FAINT))),
        ("trials", (Cell(f"{fmt.counted(found.trials, 'call')} checked against float64"),)),
        ("hold-outs", (Cell(flat(found.holdouts), Ink.WARN if "specialised" in found.holdouts else Ink.PLAIN),)),
        ("centred error", _against(found.rel_fro, found.rel_fro_limit, room)),
        ("worst element", _against(found.max_scaled, found.max_scaled_limit, room)),
        ("largest error", (Cell(fmt.error(found.max_abs)), Cell(" absolute", Ink.FAINT))),
        ("repeatable", (Cell("bit for bit") if bit_for_bit else Cell(f"to {fmt.error(found.jitter)} of its scale", Ink.WARN),)),
    ]
    lines += table(rows, room)
    lines += _sanitized(kernel, room)
    if (prepared := state.preparation) is not None:
        lines += [BLANK, section("the gate of this session", room), *_gate(prepared)]
    return tuple(lines)


def _doubt(kernel: Kernel, room: int) -> list[Line]:
    """What put the kernel into quarantine, and how the engineer judged."""
    if not kernel.evidence:
        return []
    waits = kernel.stage is Stage.QUARANTINED
    lines = [BLANK, section("in quarantine: not believed" if waits else "was in quarantine", room)]
    for one in kernel.evidence:
        parts = wrapped(one, min(room - 6, 96))
        lines += [line(Cell("  ◬ " if n == 0 else "    ", Ink.QUARANTINED), part) for n, part in enumerate(parts)]
    if kernel.accepted:
        parts = wrapped(f"believed by hand: {kernel.accepted}", min(room - 6, 96))
        lines += [line(Cell("  ✓ " if n == 0 else "    ", Ink.GOOD), part) for n, part in enumerate(parts)]
    elif waits:
        words = "It leads nothing and is no parent until you believe (a) or discard (d) it."
        lines += [line(Cell(f"  {part}", Ink.FAINT)) for part in wrapped(words, room - 4)]
    return lines


def _sanitized(kernel: Kernel, room: int) -> list[Line]:
    """What the sanitizers said of it, where they ran on this source or an earlier attempt."""
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
        verdict = Cell("✓ nothing found", Ink.GOOD)
    lines += [line("  ", verdict, Cell(f"  {flat(', '.join(found.tools))}{earlier}", Ink.FAINT))]
    lines += [line(Cell(f"  {part}", Ink.BAD)) for one in found.findings for part in wrapped(one, min(room - 4, 96))]
    lines += [line(Cell(f"  {part}", Ink.FAINT)) for part in wrapped(found.note, min(room - 4, 96))]
    return lines


def _gate(prepared: Preparation) -> list[Line]:
    """How far the reference's own arithmetic lies from float64, and which models that compute nothing were refused."""
    rows: list[tuple[str, Sequence[Cell]]] = [
        (f"reference in {name}", (Cell(fmt.error(found.rel_fro)), Cell(" centred error", Ink.FAINT)))
        for name, found in prepared.gate.classes.items()
    ]
    passes, refused = Cell("✗ passes", Ink.BAD), Cell("✓ refused", Ink.GOOD)
    rows += [(flat(null.name), (passes if null.passed else refused,)) for null in prepared.gate.nulls]
    confined = prepared.sandbox == "bubblewrap"
    sandbox = Cell("bubblewrap" if confined else "resource limits only", Ink.PLAIN if confined else Ink.WARN)
    return table([*rows, ("sandbox", (sandbox,))])


def _against(value: float, limit: float, room: int) -> Cells:
    """A meter of how much of what is allowed was used, with both figures."""
    share = value / limit if limit > 0 else float(value > 0)
    ink = Ink.GOOD if share <= 0.5 else Ink.WARN if share <= 1 else Ink.BAD
    figures = (Cell(f" {fmt.error(value)}"), Cell(f" of {fmt.error(limit)}", Ink.FAINT), Cell(f" ({fmt.percent(share)})", ink))
    return (*fmt.meter(share, max(6, min(24, room - 52)), ink), *figures)


def machine_code(
    state: SessionState, kernel: Kernel, room: int, mixes: Mapping[str, Mapping[str, int]] | None = None
) -> tuple[Line, ...]:
    """What the compiler made of it, and how each figure moved from the parent.

    ``mixes``: kernel id → instruction family → count, for those of the two that were disassembled.
    """
    if not kernel.resources and not (mixes and kernel.id in mixes) and kernel.profile is None:
        return nothing("not built yet" if not kernel.artefact else "the compiler says nothing of what it uses")
    parent = state.kernels.get(kernel.parent) if kernel.parent else None
    before = {r.function: r for r in parent.resources} if parent else {}
    lines: list[Line] = []
    for used in kernel.resources:
        earlier = before.get(used.function)
        if earlier is None and len(before) == 1 == len(kernel.resources):
            earlier = next(iter(before.values()))
        lines += [BLANK, section(flat(used.function), room), *_resources(state, used, earlier, parent.id if parent else "")]
    lines += _counters(state, kernel, parent, room)
    if mixes and kernel.id in mixes:
        earlier_mix = mixes.get(parent.id) if parent else None
        lines += [BLANK, section("instructions", room), *_mix(mixes[kernel.id], earlier_mix, room)]
        light = kernel.measurement.light if kernel.measurement else None
        words = summary(kernel.resources, mixes[kernel.id], light, before=earlier_mix)
        lines += [BLANK, section("in short", room), *_paragraph(words, room)]
    return tuple(lines)


def _counters(state: SessionState, kernel: Kernel, parent: Kernel | None, room: int) -> list[Line]:
    """What the device's counters said of one call, and in short what that means, where `espalier profile` has asked them."""
    found = kernel.profile
    if found is None:
        return []
    lines = [BLANK, section("counters", room)]
    if not found.tool:
        return [*lines, *(line(Cell(f"  {part}", Ink.WARN)) for part in wrapped(f"not read: {found.note}", min(room - 4, 96)))]
    rows: list[tuple[str, Sequence[Cell]]] = [
        (flat(row.label), (Cell(pad(row.words, 12)), Cell(row.moved, Ink.FAINT)))
        for row in profile.rows(found, parent.profile if parent else None)
    ]
    words = bottleneck.summary(found, state.preparation.bytes_moved if state.preparation else 0)
    return [*lines, *table(rows), *(_paragraph(words, room) if words else ())]


def _resources(state: SessionState, used: Resources, earlier: Resources | None, parent: str) -> list[Line]:
    def moved(name: str, amount: int, was: int | None, words: str) -> tuple[str, Sequence[Cell]]:
        cells = [Cell(pad(words, 12))]
        if was is not None:
            cells += [fmt.change(was, amount), Cell(f" from {parent}", Ink.FAINT)]
        return name, cells

    rows = [
        moved("registers", used.registers, earlier.registers if earlier else None, str(used.registers)),
        moved(
            "shared memory", used.shared_bytes, earlier.shared_bytes if earlier else None, fmt.binary_bytes(used.shared_bytes)
        ),
        moved("spills", used.spill_bytes, earlier.spill_bytes if earlier else None, fmt.binary_bytes(used.spill_bytes)),
        moved("stack", used.stack_bytes, earlier.stack_bytes if earlier else None, fmt.binary_bytes(used.stack_bytes)),
    ]
    if state.device is not None and state.device.kind == "cuda" and used.registers:
        warps = warps_by_registers(used.registers)
        rows.append(("occupancy", [Cell(f"{warps} of 64 warps", Ink.STRONG), Cell(" as far as registers go", Ink.FAINT)]))
    return table(rows)


def warps_by_registers(registers: int) -> int:
    """Warps that a multiprocessor's 65,536 registers hold, given in steps of eight a thread and 64 warps at most."""
    return min(64, 65536 // (32 * -(-registers // 8) * 8) // 4 * 4) if registers else 64


def _mix(mix: Mapping[str, int], before: Mapping[str, int] | None, room: int) -> list[Line]:
    families = {family: count for family, count in mix.items() if family != _TOTAL}
    most = max(families.values(), default=1) or 1
    gone = {family: 0 for family in before or () if family not in mix}
    rows: list[tuple[str, Sequence[Cell]]] = []
    if _TOTAL in mix:
        moved = [Cell("  "), _shift(before.get(_TOTAL, 0), mix[_TOTAL])] if before is not None else []
        rows.append(("all", [Cell(pad("", max(6, min(24, room - 44)))), Cell(f" {mix[_TOTAL]:>6}", Ink.STRONG), *moved]))
    for family, count in sorted({**families, **gone}.items(), key=lambda item: -item[1]):
        shape = fmt.meter(count / most, max(6, min(24, room - 44)))
        moved = [Cell("  "), _shift(before.get(family, 0), count)] if before is not None else []
        rows.append((family, [*shape, Cell(f" {count:>6}"), *moved]))
    return table(rows)


def _shift(before: int, after: int) -> Cell:
    """How a count of instructions moved: neither way is better by itself."""
    return (
        Cell(f"{'▼' if after < before else '▲'} {abs(after - before)}", Ink.ACCENT) if after != before else Cell("=", Ink.FAINT)
    )
