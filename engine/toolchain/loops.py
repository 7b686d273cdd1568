"""The loops of machine code, from the branches in its listing. Pure.

They say which instructions run most where nothing can be sampled. Loops are natural loops: a branch back to an instruction
through which every path into the loop goes. An indirect branch ends a path.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from engine.toolchain.listed_instructions import ListedInstruction

_ALWAYS = re.compile(r"^(?:BRA|JMP)[.\w]* (?:`\(|0x)|^(?:bnd |notrack )*(?:jmp|jmpq|b) ")
"""Branches without a condition. ``BRA.DIV`` has an operand before its target."""
_ENDS = re.compile(r"^(?:EXIT|RET|BRXU?|JMXU?)\b|^(?:bnd |notrack |repz )*(?:retq?|hlt|ud2|br|jmpq? +\*)(?: |$)")
"""Instructions after which no instruction of the listing follows."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop: the places of its instructions in the listing, in order."""

    function: str
    depth: int
    places: tuple[int, ...]
    innermost: bool


@dataclass(frozen=True, slots=True)
class _Graph:
    """The basic blocks of a function: their ends, exclusive, and which follow each."""

    starts: Sequence[int]
    ends: Sequence[int]
    after: Sequence[Sequence[int]]


def with_depths(instructions: Sequence[ListedInstruction]) -> tuple[ListedInstruction, ...]:
    """The instructions with the number of loops around each."""
    depths = Counter(place for loop in find_loops(instructions) for place in loop.places)
    return tuple(replace(one, depth=depths[place]) for place, one in enumerate(instructions))


def find_loops(instructions: Sequence[ListedInstruction]) -> tuple[Loop, ...]:
    """All loops that do anything, the deepest first; of the same depth the longest first."""
    found: list[Loop] = []
    first = 0
    for function, group in groupby(instructions, key=lambda one: one.function):
        code = tuple(group)
        found += (replace(loop, places=tuple(first + p for p in loop.places)) for loop in _loops_of(function, code))
        first += len(code)
    return tuple(sorted(found, key=lambda loop: (-loop.depth, -len(loop.places), loop.places)))


def _loops_of(function: str, code: Sequence[ListedInstruction]) -> Iterator[Loop]:
    graph = _graph(code)
    bodies = [body for body in _bodies(graph).values() if _size(graph, body) > 1]
    for body in bodies:
        places = tuple(place for block in sorted(body) for place in range(graph.starts[block], graph.ends[block]))
        depth = sum(1 for other in bodies if body <= other)
        yield Loop(function, depth, places, not any(other < body for other in bodies))


def _size(graph: _Graph, body: frozenset[int]) -> int:
    return sum(graph.ends[block] - graph.starts[block] for block in body)


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


def _bodies(graph: _Graph) -> Mapping[int, frozenset[int]]:
    """Header → the blocks of its loop, itself included."""
    order = _reverse_postorder(graph)
    before = _predecessors(graph, order)
    dominator = _dominators(order, before)
    bodies: dict[int, frozenset[int]] = {}
    for block in order:
        for header in graph.after[block]:
            if _dominates(header, block, dominator):
                bodies[header] = bodies.get(header, frozenset()) | _reaching(block, header, before)
    return bodies


def _predecessors(graph: _Graph, order: Sequence[int]) -> Mapping[int, Sequence[int]]:
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for follower in graph.after[block]:
            before[follower].append(block)
    return before


def _reaching(last: int, header: int, before: Mapping[int, Sequence[int]]) -> frozenset[int]:
    """The blocks on the paths from the header to the block that branches back."""
    found, pending = {header}, [last]
    while pending:
        block = pending.pop()
        if block not in found:
            found.add(block)
            pending += before[block]
    return frozenset(found)


def _reverse_postorder(graph: _Graph) -> Sequence[int]:
    """The blocks that can be reached, each before those that follow it unless a branch goes back."""
    seen, finished = {0}, []
    stack = [(0, iter(graph.after[0]))]
    while stack:
        block, followers = stack[-1]
        follower = next((one for one in followers if one not in seen), None)
        if follower is None:
            finished.append(block)
            stack.pop()
        else:
            seen.add(follower)
            stack.append((follower, iter(graph.after[follower])))
    return finished[::-1]


def _dominators(order: Sequence[int], before: Mapping[int, Sequence[int]]) -> Mapping[int, int]:
    """Block → its immediate dominator, the first block its own (Cooper, Harvey and Kennedy's algorithm)."""
    rank = {block: place for place, block in enumerate(order)}
    found = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [one for one in before[block] if one in found]
            nearest = known[0]
            for other in known[1:]:
                nearest = _common(nearest, other, found, rank)
            if found.get(block) != nearest:
                found[block] = nearest
                changed = True
    return found


def _common(one: int, other: int, dominator: Mapping[int, int], rank: Mapping[int, int]) -> int:
    while one != other:
        if rank[one] > rank[other]:
            one = dominator[one]
        else:
            other = dominator[other]
    return one


def _dominates(header: int, block: int, dominator: Mapping[int, int]) -> bool:
    while block != header:
        above = dominator[block]
        if above == block:
            return False
        block = above
    return True
