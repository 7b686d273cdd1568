"""The idea source that needs no key: a problem's written ideas first, then tuning of the best kernels.

Knows which ideas may come next and which of their sources to offer; reading the file is ``written``'s, tuning ``tuning``'s.
It writes no code: what it offers was written and tried beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from engine.domain import queries
from engine.domain.errors import SourceError
from engine.domain.model import CATEGORIES, Author, Dialect, Draft, IdeaText
from engine.domain.state import Kernel, SessionState
from engine.domain.work import Proposal
from engine.ideas.fanning import chosen, in_turn
from engine.ideas.source import Calls, CodeRequest, IdeaRequest, Implementation, RepairRequest
from engine.ideas.spread import spread
from engine.ideas.tuning import is_tuning, tuned_drafts, tuning_ideas
from engine.ideas.written import ROOT, WrittenIdea, WrittenSource, read_playbook

PLAYBOOK = Author("playbook")

_ROOT_TEXT = IdeaText(
    title="First port",
    category=CATEGORIES[3],
    rationale="The reference, written plainly: correct first, and the measure of everything that follows.",
    key=ROOT,
)

RootFallback = Callable[[Dialect], Draft | None]
"""Writes a naive first port where the playbook has none; ``None`` when it cannot in this dialect."""


@dataclass(frozen=True, slots=True)
class Available:
    """What a problem's playbook holds for one dialect."""

    root: bool
    ideas: int
    sources: int


def available(problem: Path, dialect: Dialect) -> Available:
    """Counted without a session. Raises IdeaSourceError for a malformed playbook."""
    written = read_playbook(problem)
    ideas = [idea for idea in written.ideas if dialect in idea.sources]
    return Available(dialect in written.root, len(ideas), sum(len(idea.sources[dialect]) for idea in ideas))


class Playbook:
    """An ``IdeaSource`` over the playbook of the problem in a folder."""

    def __init__(self, problem: Path | None, root_fallback: RootFallback | None = None) -> None:
        """``problem`` is ``None`` for a problem that is a single file: it has no playbook.

        Raises IdeaSourceError for a malformed playbook.
        """
        written = read_playbook(problem) if problem is not None else None
        self._root: Mapping[Dialect, tuple[WrittenSource, ...]] = written.root if written else {}
        self._ideas: tuple[WrittenIdea, ...] = written.ideas if written else ()
        self._root_fallback = root_fallback

    @property
    def author(self) -> Author:
        return PLAYBOOK

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        """The root in round 0; later written ideas whose parents are there, spread over categories, then tuning."""
        if request.round == 0:
            return (Proposal(_ROOT_TEXT, None, PLAYBOOK),) if self._has_root(request.dialect) else ()
        pool = _pool(request)
        written = spread(
            tuple(self._written(request, pool)),
            request.count,
            category=lambda p: p.text.category,
            worth=lambda p: p.text.predicted or 1.0,
        )
        tuned = tuning_ideas(request.state, pool, request.sources, PLAYBOOK)
        return tuple(islice(chain(written, tuned), request.count))

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        """Written sources and their variants; fewer than asked for, with a note, where there are no more."""
        idea, dialect = request.idea, request.dialect
        if is_tuning(idea.text.key) and idea.parent in request.state.kernels and request.parent_source is not None:
            drafts = tuned_drafts(request.state, idea, request.parent_source)
            return Implementation(drafts, "" if drafts else "every neighbouring combination has been tried")
        if idea.text.key == ROOT and dialect not in self._root:
            draft = self._root_fallback(dialect) if self._root_fallback else None
            return Implementation((draft,) if draft else (), "" if draft else f"no first port can be written in {dialect}")
        sources = self._sources(idea.text.key, dialect)
        if not sources:
            return Implementation((), _cannot_write(idea.id))
        return _fan_out(request, sources)

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        return None

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _has_root(self, dialect: Dialect) -> bool:
        return dialect in self._root or (self._root_fallback is not None and self._root_fallback(dialect) is not None)

    def _sources(self, key: str, dialect: Dialect) -> tuple[WrittenSource, ...]:
        if key == ROOT:
            return self._root.get(dialect, ())
        return next((idea.sources.get(dialect, ()) for idea in self._ideas if idea.key == key), ())

    def _written(self, request: IdeaRequest, pool: Sequence[Kernel]) -> Iterator[Proposal]:
        proposed = {idea.text.key for idea in request.state.ideas.values()}
        for idea in self._ideas:
            if idea.key in proposed or request.dialect not in idea.sources:
                continue
            parent = _best_parent(request.state, pool, idea.after)
            if parent is not None:
                yield Proposal(idea.text(request.dialect), parent.id, PLAYBOOK)


def _cannot_write(idea: str) -> str:
    return (
        "the playbook cannot write code for an idea in words: write the kernel yourself "
        f"(`espalier seed SESSION KERNEL --idea {idea}`) or use a model as the source"
    )


def _pool(request: IdeaRequest) -> tuple[Kernel, ...]:
    """Kernels that may be built on, best first; in ``sequential`` the round's one parent."""
    frontier = queries.frontier(request.state)
    opened = request.state.opened
    if opened is not None and opened.settings.strategy == "sequential":
        return tuple(k for k in frontier if k.id in request.parents)
    return frontier


def _best_parent(state: SessionState, pool: Sequence[Kernel], after: Sequence[str]) -> Kernel | None:
    """The best kernel that implements one of these ideas; without any, a first port or a kernel brought in as a start."""
    if after:
        return next((k for k in pool if _key(state, k) in after), None)
    root = next((k for k in pool if _key(state, k) == ROOT), None)
    return root or next((k for k in pool if k.parent is None), None)


def _key(state: SessionState, kernel: Kernel) -> str:
    """The written idea behind a kernel; a tuned kernel stands for what its parent implements."""
    for ancestor in reversed(queries.lineage(state, kernel.id)):
        idea = state.ideas.get(ancestor.idea)
        if idea is None or not is_tuning(idea.text.key):
            return idea.text.key if idea else ""
    return ""


def _fan_out(request: CodeRequest, sources: Sequence[WrittenSource]) -> Implementation:
    """Variants of all sources, and what is to be said of those that have none."""
    offered: list[list[Draft]] = []
    notes: list[str] = []
    for source in sources:
        kernel = source.kernel
        try:
            found = chosen(request, f"{request.idea.id}:{kernel.name}", source.tunables, source.requires)
        except SourceError as error:
            notes.append(f"{kernel.name}: {error}")
            continue
        offered.append([Draft(kernel.text, kernel.dialect, kernel.contract, kernel.name, dict(one)) for one in found])
    return Implementation(in_turn(request, offered), "; ".join(notes))
