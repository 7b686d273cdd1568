"""Proposes tuning ideas: untried tunable values next to those of the best kernels.

Works for every kernel with tunables, whoever wrote it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.domain.errors import KernelCodeError
from engine.domain.model import Author, Draft, IdeaText, Number, Tunable
from engine.domain.state import Idea, Kernel, SessionState
from engine.domain.strategy.evidence import TUNE
from engine.domain.work import Proposal
from engine.problem.header import plan_names
from engine.toolchain.tunables import Combination, neighbours, parse_requires, parse_tunables

_CATEGORY = "occupancy"


@dataclass(frozen=True, slots=True)
class _Neighbourhood:
    """The untried combinations of tunables that neighbour one kernel's values."""

    tunables: tuple[Tunable, ...]
    values: Combination
    untried: tuple[Combination, ...]

    @property
    def names(self) -> str:
        """The tunables that differ in the untried combinations."""
        changed = (t.name for t in self.tunables if any(c[t.name] != self.values[t.name] for c in self.untried))
        return ", ".join(changed)


def constants(state: SessionState) -> dict[str, Number]:
    """Names and values that ``@require`` lines of this session's kernels can use."""
    if state.preparation is None or state.device is None:
        return {}
    return plan_names(state.preparation.signature, state.device.units)


def is_tuning(key: str) -> bool:
    return key.startswith(f"{TUNE}:")


def tuning_ideas(state: SessionState, kernels: Sequence[Kernel], code: Mapping[str, str], author: Author) -> Iterator[Proposal]:
    """Proposals for these kernels, best first: one for each distinct code, with the best kernel of that code as parent.

    Code is skipped if one of its tuning ideas awaits approval, was rejected, or is not implemented yet.
    """
    seen: set[str] = set()
    for kernel in kernels:
        if kernel.source in seen or kernel.id not in code:
            continue
        seen.add(kernel.source)
        earlier = _earlier(state, kernel)
        if any(not idea.implemented for idea in earlier):
            continue
        around = _neighbourhood(state, kernel, code[kernel.id])
        if around.untried:
            generation = 1 + sum(1 for idea in earlier if idea.parent == kernel.id)
            yield Proposal(_text(kernel, around, generation), kernel.id, author)


def tuned_drafts(state: SessionState, idea: Idea, code: str) -> tuple[Draft, ...]:
    """At most ``idea.branch`` variants of the idea's parent, nearest to its own values first."""
    kernel = state.kernels[idea.parent or ""]
    around = _neighbourhood(state, kernel, code)
    return tuple(
        Draft(code, kernel.dialect, kernel.contract, kernel.name, dict(values)) for values in around.untried[: idea.branch]
    )


def _earlier(state: SessionState, kernel: Kernel) -> list[Idea]:
    """Tuning ideas whose parent has the same code."""
    return [
        idea
        for idea in state.ideas.values()
        if is_tuning(idea.text.key) and (aim := state.kernels.get(idea.parent or "")) and aim.source == kernel.source
    ]


def _neighbourhood(state: SessionState, kernel: Kernel, code: str) -> _Neighbourhood:
    """Empty if the ``@tune`` lines cannot be parsed: such code was built without them."""
    try:
        tunables = parse_tunables(code, kernel.dialect)
        requires = parse_requires(code, kernel.dialect)
        values = {t.name: kernel.tunables.get(t.name, t.values[0]) for t in tunables}
        tried = [k.tunables for k in state.kernels.values() if k.source == kernel.source]
        return _Neighbourhood(tunables, values, neighbours(tunables, requires, constants(state), values, tried))
    except KernelCodeError:
        return _Neighbourhood((), {}, ())


def _text(kernel: Kernel, around: _Neighbourhood, generation: int) -> IdeaText:
    step = f", step {generation}" if generation > 1 else ""
    values = "; ".join(f"{name} = {value}" for name, value in kernel.tunables.items()) or "its defaults"
    return IdeaText(
        title=f"Tune {around.names} of {kernel.id} around its best values{step}",
        category=_CATEGORY,
        rationale=(
            f"{kernel.id} is among the best kernels with {values}; {len(around.untried)} neighbouring "
            f"combination{'s' * (len(around.untried) != 1)} of its tunables {'is' if len(around.untried) == 1 else 'are'} "
            "untried. Changing as few values as possible shows which tunables still matter. The code stays the same."
        ),
        key=f"{TUNE}:{kernel.id}:{generation}",
    )
