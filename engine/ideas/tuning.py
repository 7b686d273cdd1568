"""Ideas that need no words: other values of the tunables that a good kernel's own source declares.

Works on any kernel with tunables, whoever wrote it. Pure: told the sources, it answers with proposals and drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.build.tunables import Combination, neighbours, parse_requires, parse_tunables
from engine.domain.errors import SourceError
from engine.domain.model import Author, Draft, IdeaText, Number, Tunable
from engine.domain.state import Idea, Kernel, SessionState
from engine.domain.work import Proposal
from engine.problem.header import plan_names

PREFIX = "tune"
_CATEGORY = "occupancy"


@dataclass(frozen=True, slots=True)
class _Room:
    """What is left to try around one kernel's values."""

    tunables: tuple[Tunable, ...]
    chosen: Combination
    untried: tuple[Combination, ...]

    @property
    def names(self) -> str:
        """The tunables that the untried combinations change."""
        changed = (t.name for t in self.tunables if any(c[t.name] != self.chosen[t.name] for c in self.untried))
        return ", ".join(changed)


def constants(state: SessionState) -> dict[str, Number]:
    """The names that ``@require`` lines of this session's kernels may use."""
    if state.preparation is None or state.device is None:
        return {}
    return plan_names(state.preparation.signature, state.device.units)


def is_tuning(key: str) -> bool:
    return key.startswith(f"{PREFIX}:")


def tuning_ideas(
    state: SessionState, kernels: Sequence[Kernel], sources: Mapping[str, str], author: Author
) -> Iterator[Proposal]:
    """Proposals for these kernels, best first; one for each source, at the best kernel that has it.

    Nothing is proposed for a source whose last tuning is undecided, was turned down, or is not implemented yet.
    """
    seen: set[str] = set()
    for kernel in kernels:
        if kernel.source in seen or kernel.id not in sources:
            continue
        seen.add(kernel.source)
        earlier = _earlier(state, kernel)
        if any(not idea.implemented for idea in earlier):
            continue
        room = _room(state, kernel, sources[kernel.id])
        if room.untried:
            generation = 1 + sum(1 for idea in earlier if idea.parent == kernel.id)
            yield Proposal(_text(kernel, room, generation), kernel.id, author)


def tuned_drafts(state: SessionState, idea: Idea, source: str) -> tuple[Draft, ...]:
    """At most ``idea.branch`` variants of the idea's parent, nearest to its own values first."""
    kernel = state.kernels[idea.parent or ""]
    room = _room(state, kernel, source)
    return tuple(
        Draft(source, kernel.dialect, kernel.contract, kernel.name, dict(chosen)) for chosen in room.untried[: idea.branch]
    )


def _earlier(state: SessionState, kernel: Kernel) -> list[Idea]:
    """Tuning ideas aimed at any kernel of the same source."""
    return [
        idea
        for idea in state.ideas.values()
        if is_tuning(idea.text.key) and (aim := state.kernels.get(idea.parent or "")) and aim.source == kernel.source
    ]


def _room(state: SessionState, kernel: Kernel, source: str) -> _Room:
    """A source whose lines cannot be read has no room: it was built without them, so they are not ours."""
    try:
        tunables = parse_tunables(source, kernel.dialect)
        requires = parse_requires(source, kernel.dialect)
        chosen = {t.name: kernel.tunables.get(t.name, t.values[0]) for t in tunables}
        tried = [k.tunables for k in state.kernels.values() if k.source == kernel.source]
        return _Room(tunables, chosen, neighbours(tunables, requires, constants(state), chosen, tried))
    except SourceError:
        return _Room((), {}, ())


def _text(kernel: Kernel, room: _Room, generation: int) -> IdeaText:
    step = f", step {generation}" if generation > 1 else ""
    values = "; ".join(f"{name} = {value}" for name, value in kernel.tunables.items()) or "its defaults"
    return IdeaText(
        title=f"Tune {room.names} of {kernel.id} around its best values{step}",
        category=_CATEGORY,
        rationale=(
            f"{kernel.id} is among the best kernels with {values}, and {len(room.untried)} neighbouring "
            f"combination{'s' * (len(room.untried) != 1)} of its tunables have not been tried. Changing one value at a time "
            "shows which of them still matters; no code changes."
        ),
        key=f"{PREFIX}:{kernel.id}:{generation}",
    )
