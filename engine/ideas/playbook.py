"""The playbook proposer, which needs no model: ideas with tested implementations from a file, then tuning of the best kernels.

Chooses the next ideas and which of their implementations to offer. ``playbook_file`` reads the file, ``tuning`` proposes tuning
ideas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from engine.domain import queries
from engine.domain.errors import KernelCodeError
from engine.domain.model import CATEGORIES, Author, Dialect, Draft, IdeaText
from engine.domain.state import Kernel, SessionState
from engine.domain.work import Proposal
from engine.ideas.playbook_file import ROOT, PlaybookFile, PlaybookImplementation, read_playbook
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, RepairRequest
from engine.ideas.selection import pick_diverse, take_in_turn, variant_drafts
from engine.ideas.tuning import is_tuning, tuned_drafts, tuning_ideas
from engine.ideas.vector_width import fitted

PLAYBOOK = Author("playbook")

_ROOT_TEXT = IdeaText(
    title="Naive port",
    category=CATEGORIES[3],
    rationale="A direct translation of the reference: correct, unoptimised, and the starting point of the search.",
    key=ROOT,
)

RootFallback = Callable[[Dialect], Draft | None]
"""Generates a naive port if the playbook has none; ``None`` if there is no generator for the dialect."""


@dataclass(frozen=True, slots=True)
class Available:
    """What a problem's playbook offers in one dialect."""

    root: bool
    ideas: int


def available(problem: Path, dialect: Dialect) -> Available:
    """What the playbook in a problem's folder offers. Raises ProposerError for a malformed playbook."""
    playbook = read_playbook(problem)
    return Available(dialect in playbook.root, sum(dialect in idea.implementations for idea in playbook.ideas))


class Playbook:
    """A ``Proposer`` over the playbook in a problem's folder."""

    def __init__(self, problem: Path | None, root_fallback: RootFallback | None = None) -> None:
        """``problem`` is ``None`` for a problem in a single file, which has no playbook.

        Raises ProposerError for a malformed playbook.
        """
        self._file = read_playbook(problem) if problem is not None else PlaybookFile()
        self._root_fallback = root_fallback

    @property
    def author(self) -> Author:
        return PLAYBOOK

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        """Round 0: the naive port. Later rounds: ideas of the file whose parents exist, spread over the categories, then
        tuning ideas."""
        if request.round == 0:
            return (Proposal(_ROOT_TEXT, None, PLAYBOOK),) if self._has_root(request.dialect) else ()
        pool = _pool(request)
        from_file = pick_diverse(tuple(self._next_ideas(request, pool)), request.count)
        tunings = tuning_ideas(request.state, pool, request.code, PLAYBOOK)
        return tuple(islice(chain(from_file, tunings), request.count))

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        """Implementations from the file and their variants; a note says why there are fewer than requested."""
        idea, dialect = request.idea, request.dialect
        if is_tuning(idea.text.key) and idea.parent in request.state.kernels and request.parent_code is not None:
            drafts = tuned_drafts(request.state, idea, request.parent_code)
            return Implementation(drafts, "" if drafts else "every neighbouring combination has been tried")
        if idea.text.key == ROOT and dialect not in self._file.root:
            draft = self._root_fallback(dialect) if self._root_fallback else None
            return Implementation((draft,) if draft else (), "" if draft else f"no naive port can be generated in {dialect}")
        found = self._implementations(idea.text.key, dialect)
        implementations = [fitted(one, request.state.device) for one in found]
        if not implementations:
            return Implementation((), _no_code_note(idea.id))
        return _with_variants(request, implementations)

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        return None

    async def close(self) -> None:
        """Nothing is open."""

    def _has_root(self, dialect: Dialect) -> bool:
        return dialect in self._file.root or (self._root_fallback is not None and self._root_fallback(dialect) is not None)

    def _implementations(self, key: str, dialect: Dialect) -> tuple[PlaybookImplementation, ...]:
        if key == ROOT:
            return self._file.root.get(dialect, ())
        return next((idea.implementations.get(dialect, ()) for idea in self._file.ideas if idea.key == key), ())

    def _next_ideas(self, request: IdeaRequest, pool: Sequence[Kernel]) -> Iterator[Proposal]:
        proposed = {idea.text.key for idea in request.state.ideas.values()}
        for idea in self._file.ideas:
            if idea.key in proposed or request.dialect not in idea.implementations:
                continue
            parent = _best_parent(request.state, pool, idea.after)
            if parent is not None:
                yield Proposal(idea.text(request.dialect), parent.id, PLAYBOOK)


def _no_code_note(idea: str) -> str:
    return (
        "the playbook cannot write code for an idea in words: write the kernel yourself "
        f"(`espalier kernel seed SESSION KERNEL --idea {idea}`) or name a model as its writer"
    )


def _pool(request: IdeaRequest) -> tuple[Kernel, ...]:
    """Kernels that can be parents, best first; with the ``sequential`` strategy only the round's parent."""
    frontier = queries.frontier(request.state)
    opened = request.state.opened
    if opened is not None and opened.settings.strategy == "sequential":
        return tuple(k for k in frontier if k.id in request.parents)
    return frontier


def _best_parent(state: SessionState, pool: Sequence[Kernel], after: Sequence[str]) -> Kernel | None:
    """The best kernel that implements one of the ideas ``after``; if ``after`` is empty, a naive port or a parentless seed."""
    if after:
        return next((k for k in pool if _key(state, k) in after), None)
    root = next((k for k in pool if _key(state, k) == ROOT), None)
    return root or next((k for k in pool if k.parent is None), None)


def _key(state: SessionState, kernel: Kernel) -> str:
    """The key of a kernel's idea; for a tuned kernel, the key of the idea that was tuned."""
    for ancestor in reversed(queries.lineage(state, kernel.id)):
        idea = state.ideas.get(ancestor.idea)
        if idea is None or not is_tuning(idea.text.key):
            return idea.text.key if idea else ""
    return ""


def _with_variants(request: CodeRequest, implementations: Sequence[PlaybookImplementation]) -> Implementation:
    """Variants of all implementations, and a note on those without variants."""
    offered: list[list[Draft]] = []
    notes: list[str] = []
    for one in implementations:
        salt = f"{request.idea.id}:{one.kernel.name}"
        try:
            offered.append(variant_drafts(request, one.kernel, one.tunables, one.requires, salt))
        except KernelCodeError as error:
            notes.append(f"{one.kernel.name}: {error}")
    return Implementation(take_in_turn(request, offered), "; ".join(notes))
