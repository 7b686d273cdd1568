"""Makes a dispatch from a session on a suite: one kernel that runs, on each shape, the best of the tree there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.domain import columns, suite
from engine.domain.commands import SeedKernel
from engine.domain.errors import CommandRejected
from engine.domain.model import Contract, Number, Workload
from engine.domain.state import Kernel, SessionState
from engine.session.ports import StoreBlob
from engine.session.seeds import seed_command, seed_of
from engine.toolchain.dispatch import Dispatch, DispatchMember, dispatch_text
from engine.toolchain.kernel_file import KernelCode

ReadCode = Callable[[Kernel], KernelCode]


def dispatch_command(state: SessionState, read: ReadCode, store_blob: StoreBlob) -> SeedKernel:
    """The command that seeds the dispatch of the session's best kernels, as a child of the best single one.

    Raises CommandRejected where there is nothing to choose from.
    """
    base = columns.best_single(state)
    if len(columns.workloads(state)) < 2:
        raise CommandRejected("a dispatch chooses by shape, and this session has one workload: run it with --suite")
    if base is None:
        raise CommandRejected("no kernel is verified and measured yet: a dispatch chooses between measured kernels")
    if base.contract is Contract.MODULE:
        raise CommandRejected(f"{base.id} is a python module: a dispatch is made of cuda, cpp or triton kernels")
    chosen = columns.dispatched(state)
    if not chosen:
        raise CommandRejected(f"no {base.dialect} kernel is faster than {base.id} on any workload by its interval")
    names = {kernel.id for _, kernel in chosen}
    if known := _made_already(state, chosen):
        raise CommandRejected(f"{known.id} is the dispatch of {', '.join(known.members)} already")
    members = [state.kernels[name] for name in dict.fromkeys((base.id, *sorted(names, key=_number))) if name in names]
    dispatch = Dispatch(deciding([one for one, _ in chosen]), tuple(_member(one, read(one), chosen) for one in members))
    title = f"Dispatch of {_listed([one.id for one in members])}"
    text = dispatch_text(dispatch, base.dialect, f"{title}: the nearest measured shape decides.")
    code = KernelCode(text, base.dialect, base.contract, f"dispatch{base.dialect.suffix}")
    return seed_command(store_blob, seed_of(code, {}), base.id, title=title)


def deciding(workloads: list[Workload]) -> tuple[str, ...]:
    """The settings in which the workloads differ and that each of them states. Raises CommandRejected if there is none."""
    differing = dict.fromkeys(name for each in suite.distinct(workloads).values() for name in each)
    found = tuple(name for name in differing if all(name in one.settings for one in workloads))
    if not found:
        raise CommandRejected("the workloads of the suite differ in no setting that each of them states: nothing can decide")
    return found


def _made_already(state: SessionState, chosen: tuple[tuple[Workload, Kernel], ...]) -> Kernel | None:
    """A dispatch of the same kernels."""
    names = {kernel.id for _, kernel in chosen}
    return next((k for k in state.kernels.values() if set(k.members) == names and k.failure is None), None)


def _member(kernel: Kernel, code: KernelCode, chosen: tuple[tuple[Workload, Kernel], ...]) -> DispatchMember:
    settings = deciding([one for one, _ in chosen])
    shapes: tuple[Mapping[str, Number], ...] = tuple(
        {name: one.settings[name] for name in settings} for one, best in chosen if best.id == kernel.id
    )
    return DispatchMember(kernel.id, kernel.tunables, shapes, code.text)


def _number(kernel: str) -> int:
    return int(kernel[1:]) if kernel[1:].isdecimal() else 0


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
