"""The loops of machine code, from the branches in its listing. Pure.

They say which instructions run most where nothing can be sampled. Loops are natural loops: a branch back to an instruction
through which every path into the loop goes. An indirect branch ends a path.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from engine.domain.machine_listing import ListedInstruction
from engine.toolchain.dominators import Dominators

_ALWAYS = re.compile(r"^(?:BRA|JMP)[.\w]* (?:`\(|0x)|^(?:bnd |notrack )*(?:jmp|jmpq|b) ")
"""Branches without a condition. ``BRA.DIV`` has an operand before its target."""
_ENDS = re.compile(r"^(?:EXIT|RET|BRXU?|JMXU?)\b|^(?:bnd |notrack |repz )*(?:retq?|hlt|ud2|br|jmpq? +\*)(?: |$)")
"""Instructions after which no instruction of the listing follows."""


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop: the places of its instructions in the listing, in order."""

    function: str
    depth: int
    """The number of loops around its instructions, itself included."""
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Graph:
    """The basic blocks of a function: their ends, exclusive, and which follow each."""

    starts: Sequence[int]
    ends: Sequence[int]
    after: Sequence[Sequence[int]]

    def size(self, block: int) -> int:
        return self.ends[block] - self.starts[block]


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops of a function by their headers, which are their first blocks."""

    inside: Mapping[int, int]
    """Block → the header of the innermost loop around it."""
    outer: Mapping[int, int]
    """Header → the header of the next loop around it."""

    def depths(self) -> dict[int, int]:
        """Header → the number of loops around it, its own included."""
        found: dict[int, int] = {}
        for header in self.inside.values():
            chain = []
            at: int | None = header
            while at is not None and at not in found:
                chain.append(at)
                at = self.outer.get(at)
            above = found[at] if at is not None else 0
            found.update((one, above + step) for step, one in enumerate(reversed(chain), 1))
        return found


def with_depths(instructions: Sequence[ListedInstruction]) -> tuple[ListedInstruction, ...]:
    """The instructions with the number of loops around each."""
    found: list[ListedInstruction] = []
    for _, code in _functions(instructions):
        graph = _graph(code)
        nest = _nest(graph)
        depths = nest.depths()
        for block, (start, end) in enumerate(zip(graph.starts, graph.ends, strict=True)):
            depth = depths[nest.inside[block]] if block in nest.inside else 0
            found += (replace(one, depth=depth) for one in code[start:end])
    return tuple(found)


def innermost_loops(instructions: Sequence[ListedInstruction]) -> tuple[Loop, ...]:
    """The loops without a loop inside that do anything, the deepest first; of the same depth the longest first."""
    found: list[Loop] = []
    first = 0
    for function, code in _functions(instructions):
        graph = _graph(code)
        nest = _nest(graph)
        depths, around = nest.depths(), set(nest.outer.values())
        places: dict[int, list[int]] = {}
        for block, header in sorted(nest.inside.items()):
            if header not in around:
                places.setdefault(header, []).extend(range(first + graph.starts[block], first + graph.ends[block]))
        found += (Loop(function, depths[header], tuple(of_it)) for header, of_it in places.items())
        first += len(code)
    return tuple(sorted(found, key=lambda loop: (-loop.depth, -len(loop.places), loop.places)))


def _functions(instructions: Sequence[ListedInstruction]) -> Iterator[tuple[str, Sequence[ListedInstruction]]]:
    for function, group in groupby(instructions, key=lambda one: one.function):
        yield function, tuple(group)


def _graph(code: Sequence[ListedInstruction]) -> _Graph:
    """Targets outside the function lead nowhere. A target in padding, which is not listed, is the next instruction."""
    addresses = [one.address for one in code]
    targets = [
        bisect.bisect_left(addresses, one.target)
        if one.target is not None and addresses[0] <= one.target <= addresses[-1]
        else None
        for one in code
    ]
    leaders = {0, *(target for target in targets if target is not None)}
    leaders |= {place + 1 for place, one in enumerate(code) if one.target is not None or _ENDS.match(one.text)}
    starts = sorted(leaders - {len(code)})
    ends = [*starts[1:], len(code)]
    block_at = {start: block for block, start in enumerate(starts)}
    after: list[list[int]] = []
    for end in ends:
        last, target = code[end - 1], targets[end - 1]
        follows = [block_at[target]] if target is not None else []
        if end < len(code) and not _ENDS.match(last.text) and not (last.target is not None and _ALWAYS.match(last.text)):
            follows.append(block_at[end])
        after.append(follows)
    return _Graph(starts, ends, after)


def _nest(graph: _Graph) -> _Nest:
    """Inner loops come first, and each is one block of those around it: no block is looked at more than a few times."""
    dominators = Dominators(graph.after)
    inside: dict[int, int] = {}
    outer: dict[int, int] = {}
    whole: dict[int, int] = {}
    """Block or header → the header of a loop around it."""
    for header in reversed(dominators.order):
        pending = [block for block in dominators.before[header] if dominators.dominates(header, block)]
        if not pending or (set(pending) == {header} and graph.size(header) == 1):
            continue
        inside[header] = header
        while pending:
            block = _outermost(pending.pop(), whole)
            if block != header:
                (outer if inside.get(block) == block else inside)[block] = header
                whole[block] = header
                pending += dominators.before[block]
    return _Nest(inside, outer)


def _outermost(block: int, whole: dict[int, int]) -> int:
    """The header of the outermost loop that is known around the block, or the block itself. Shortens the way there."""
    path = []
    while block in whole:
        path.append(block)
        block = whole[block]
    whole.update(dict.fromkeys(path, block))
    return block
