"""``espalier kernel machine-code``: the instructions of one kernel of a session, or how they differ from another kernel's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from engine.api.disassembly import disassemble
from engine.cli import options as o
from engine.cli.drive import drive
from engine.cli.output import show, show_json
from engine.cli.session_access import read_state, session_argument
from engine.domain import hot_code
from engine.domain.machine_listing import BARS, ListedInstruction, MachineListing
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.report.text.lines import Line, Span, Tone, line
from engine.session.seeds import kernel_of
from engine.toolchain.listing import ListingChange, listing_diff

_NO_SAMPLES = "not sampled: `espalier kernel profile` samples the program counter on a CPU"
_LOOPS = f"each | is a loop around the instruction, of at most {BARS} (static)"
_CONTEXT = 3


@click.command("machine-code")
@session_argument
@click.argument("kernel", type=o.KERNEL)
@click.option("--diff", "against", type=o.KERNEL, metavar="K", help="Only what differs from this kernel.")
@o.json_option
def machine_code(session: str, kernel: str, against: str | None, as_json: bool) -> None:
    """List the machine code of KERNEL of SESSION, with the source lines it came from.

    The kernel is built once more with line tables, for the device that the session ran on; no device is needed. Where `espalier
    kernel profile` sampled the program counter, each instruction shows its share of the samples. Bars count the loops around an
    instruction, as far as the branches of the machine code show them. --diff ignores addresses and register numbers.
    """
    folder = store.resolve(session)
    state = read_state(folder)
    target = kernel_of(state, kernel, folder)
    other = kernel_of(state, against, folder) if against is not None else None
    found = drive(lambda _: disassemble(folder, state, target))
    if other is None:
        changes = tuple(ListingChange(" ", one) for one in found.instructions)
    else:
        changes = listing_diff(drive(lambda _: disassemble(folder, state, other)), found)
    if as_json:
        rows = [
            {"sign": c.sign.strip(), "function": one.function, "address": one.address, "text": one.text, "line": one.line,
             "samples": one.samples, "depth": one.depth}
            for c in changes for one in [c.instruction]
        ]  # fmt: skip
        total = found.samples or None
        show_json({"kernel": target.id, "against": against, "tool": found.tool, "samples": total, "instructions": rows})
        return
    source = Blobs(folder).text(target.source).splitlines()
    samples = f"{found.samples:,} samples: {hot_code.SKID}" if found.samples else _NO_SAMPLES
    samples += f"; {_LOOPS}" if any(one.depth for one in found.instructions) else ""
    show([line(Span(f"{target.id}: {len(found.instructions)} instructions, {found.tool}; {samples}", Tone.FAINT))])
    show(_diff_lines(changes) if other is not None else _listing_lines(found, source))


def _listing_lines(found: MachineListing, source: Sequence[str]) -> Iterator[Line]:
    """Each run of instructions under the source line that it came from."""
    function, at = "", -1
    for one in found.instructions:
        if one.function != function:
            function, at = one.function, -1
            yield line(Span(f"{function}:", Tone.STRONG))
        if one.line != at:
            at = one.line
            if 0 < at <= len(source):
                yield line(Span(f"  {at:>4} │ {source[at - 1].strip()}", Tone.GOOD))
        yield _instruction(one, "", found.samples)
    if not found.has_lines:
        yield line(Span("the compiler gave no source lines", Tone.FAINT))


def _diff_lines(changes: Sequence[ListingChange]) -> Iterator[Line]:
    """What changed, with a few instructions around it."""
    near = {m for n, change in enumerate(changes) if change.sign != " " for m in range(n - _CONTEXT, n + _CONTEXT + 1)}
    added, removed = (sum(1 for change in changes if change.sign == sign) for sign in "+-")
    yield line(Span(f"+{added} −{removed} instructions; register numbers and addresses are not compared", Tone.FAINT))
    last = -1
    for n, change in enumerate(changes):
        if n not in near:
            continue
        if n > last + 1:
            yield line(Span(f"  … {n - last - 1} equal", Tone.FAINT))
        last = n
        yield _instruction(change.instruction, change.sign)


def _instruction(one: ListedInstruction, sign: str, samples: int = 0) -> Line:
    """``samples`` are those of all instructions; 0 if there are none to show."""
    tone = {"+": Tone.GOOD, "-": Tone.BAD}.get(sign, Tone.PLAIN)
    share = [Span(f"{hot_code.share_words(hot_code.share(one.samples, samples)):>6} ", Tone.WARN)] if samples else []
    bars = Span(f"{'|' * min(BARS, one.depth):{BARS}} ", Tone.FAINT)
    return line(Span(f"{sign:1}"), *share, Span(f" {one.address:>6x} ", Tone.FAINT), bars, Span(one.text, tone))
