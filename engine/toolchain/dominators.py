"""Dominators in a graph of basic blocks: the blocks through which every path to a block goes. Pure.

Lengauer and Tarjan's algorithm: a kernel's code can have tens of thousands of blocks in any shape.
"""

from __future__ import annotations

from collections.abc import Sequence


class Dominators:
    """Of the blocks that can be reached from block 0; ``after`` lists the blocks that follow each."""

    def __init__(self, after: Sequence[Sequence[int]]) -> None:
        self.order, above = _depth_first(after)
        """The reached blocks, each before those that it dominates."""
        number = {block: place for place, block in enumerate(self.order)}
        before: list[list[int]] = [[] for _ in self.order]
        for block in self.order:
            for follower in after[block]:
                before[number[follower]].append(number[block])
        self.before = {block: [self.order[place] for place in before[number[block]]] for block in self.order}
        """The reached blocks that each follows."""
        nearest = _nearest(before, above)
        self._first, self._count = _subtrees(nearest)
        self._number = number

    def dominates(self, one: int, other: int) -> bool:
        """Whether every path to ``other`` goes through ``one``."""
        here, there = self._number[one], self._number[other]
        return self._first[here] <= self._first[there] < self._first[here] + self._count[here]


def _depth_first(after: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The blocks in the order of their first visit, and from which of them, by its place, each was reached."""
    order: list[int] = []
    above: list[int] = []
    seen: set[int] = set()
    pending = [(0, 0)]
    while pending:
        block, parent = pending.pop()
        if block not in seen:
            seen.add(block)
            pending += ((follower, len(order)) for follower in after[block])
            order.append(block)
            above.append(parent)
    return order, above


def _nearest(before: Sequence[Sequence[int]], above: Sequence[int]) -> list[int]:
    """The immediate dominator of each place in the order of visits; the first place's is itself."""
    size = len(before)
    semi, best, nearest = list(range(size)), list(range(size)), [0] * size
    linked = [-1] * size
    waiting: list[list[int]] = [[] for _ in range(size)]

    def least(place: int) -> int:
        """The place with the smallest semidominator on the linked path above; the path becomes shorter."""
        if linked[place] < 0:
            return place
        path = [place]
        while linked[linked[path[-1]]] >= 0:
            path.append(linked[path[-1]])
        for below in reversed(path[:-1]):
            top = linked[below]
            if semi[best[top]] < semi[best[below]]:
                best[below] = best[top]
            linked[below] = linked[top]
        return best[place]

    for place in range(size - 1, 0, -1):
        semi[place] = min((semi[least(one)] for one in before[place]), default=place)
        waiting[semi[place]].append(place)
        parent = linked[place] = above[place]
        for one in waiting[parent]:
            lowest = least(one)
            nearest[one] = lowest if semi[lowest] < semi[one] else parent
        waiting[parent].clear()
    for place in range(1, size):
        if nearest[place] != semi[place]:
            nearest[place] = nearest[nearest[place]]
    return nearest


def _subtrees(nearest: Sequence[int]) -> tuple[list[int], list[int]]:
    """The dominator tree: a number for each place, and how many consecutive numbers from it on its subtree has."""
    count = [1] * len(nearest)
    for place in range(len(nearest) - 1, 0, -1):
        count[nearest[place]] += count[place]
    first = [0] * len(nearest)
    free = [1] * len(nearest)
    for place in range(1, len(nearest)):
        parent = nearest[place]
        first[place] = free[parent]
        free[parent] += count[place]
        free[place] = first[place] + 1
    return first, count
