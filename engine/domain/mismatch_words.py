"""The evidence of a mismatch as rows of text, for the engineer and for prompts: what is wrong, where, how, and examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from engine.domain.figure_text import percent_of
from engine.domain.mismatch import Mismatch, WrongElement
from engine.domain.model import FailedWorkload


def failed_workload_rows(failed: FailedWorkload | None) -> list[tuple[str, str]]:
    """Label and text of each row: which workload of the suite a kernel failed on, and which it passed."""
    if failed is None:
        return []
    rows = [("failed on", failed.workload), ("passed", ", ".join(failed.passed) or "none")]
    return [*rows, *([("not tried", ", ".join(failed.untried))] if failed.untried else [])]


def mismatch_rows(mismatches: Sequence[Mismatch]) -> list[tuple[str, str]]:
    """Label and text of each row, for the engineer: hold-out shapes are shown as they are."""
    return [row for one in mismatches for row in _rows(one)]


def _rows(one: Mismatch) -> Iterator[tuple[str, str]]:
    yield "wrong", f"{one.output}: {one.wrong} of {one.elements} elements ({share(one)}){_by_more_than(one)}"
    yield "inputs", inputs_words(one)
    labels = ["where", *["how"] * len(one.observations)]
    yield from zip(labels, (seen.text for seen in one.observations), strict=False)
    for example in one.examples:
        yield "element", element_words(one, example)


def share(one: Mismatch) -> str:
    """The share of wrong elements; never 0% or 100% by rounding."""
    return percent_of(one.wrong, one.elements)


def _by_more_than(one: Mismatch) -> str:
    return f", each by more than {one.limit:.2g} of its scale" if one.limit else ", compared exactly"


def inputs_words(one: Mismatch) -> str:
    """The inputs of the call that failed, and its number."""
    kind = "the problem's own" if one.inputs == "own" else f"perturbed ({one.inputs})"
    return f"{kind}{', on a hold-out shape' if one.holdout else ''}, call {one.call}"


def element_words(one: Mismatch, example: WrongElement) -> str:
    """``out[0, 496] = 0.5, expected 0.1234, error 1.2 of its scale``."""
    place = f"{one.output}[{', '.join(map(str, example.index))}]" if example.index else one.output
    got = f"{place} = {example.got:.7g}" if example.written else f"{place} is not written"
    error = (
        f", error {example.error:.3g} of its scale" if one.limit and math.isfinite(example.error) and example.written else ""
    )
    return f"{got}, expected {example.expected:.7g}{error}"


def prompt_lines(mismatches: Sequence[Mismatch]) -> list[str]:
    """The evidence for a prompt, one line each. Of a hold-out shape only patterns are given, no sizes, indices or values."""
    lines: list[str] = []
    for one in mismatches:
        if one.holdout:
            lines += [f"- {one.output}, on a hold-out shape: {'; '.join(seen.general for seen in one.observations)}"]
            continue
        lines += [f"- {label}: {text}" for label, text in _rows(one)]
    return lines
