"""Makes a dispatch from a session on a suite: one kernel that runs, on each shape, the best of the tree there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.domain import columns
from engine.domain import work as w
from engine.domain.commands import SeedKernel
from engine.domain.errors import CommandRejected, KernelCodeError
from engine.domain.model import ENGINE, Contract, Workload
from engine.domain.state import Kernel, SessionState
from engine.session.ports import StoreBlob
from engine.session.seeds import seed_command, seed_of
from engine.toolchain.dispatch import (
    Dispatch,
    DispatchMember,
    DispatchShape,
    deciding_settings,
    dispatch_text,
    is_dispatch,
    parse_dispatch,
)
from engine.toolchain.kernel_build import choices
from engine.toolchain.kernel_file import KernelCode

ReadCode = Callable[[Kernel], KernelCode]


@dataclass(frozen=True, slots=True)
class SessionDispatch:
    """A dispatch of the session's best kernels, made from the best single one."""

    code: KernelCode
    base: str
    title: str
    members: tuple[str, ...]


def dispatch_command(state: SessionState, read: ReadCode, store_blob: StoreBlob) -> SeedKernel:
    """The command that seeds the dispatch of the session's best kernels, as a child of the best single one.

    Raises CommandRejected where there is nothing to choose from.
    """
    made = dispatch_of(state, read)
    return seed_command(store_blob, seed_of(made.code, {}), made.base, title=made.title, workloads=columns.workloads(state))


def dispatch_draft(state: SessionState, read: ReadCode, store_blob: StoreBlob) -> w.Drafts:
    """The dispatch of the session's best kernels, as the implementation of an idea of the search; or why there is none."""
    try:
        made = dispatch_of(state, read)
    except (CommandRejected, KernelCodeError) as error:
        return w.Drafts((), str(error))
    code = made.code
    stored = store_blob(code.text.encode("utf-8", "replace"))
    draft = w.StoredDraft(
        code.name, code.dialect, code.contract, stored, ENGINE, members=made.members,
        choices=choices(code, columns.workloads(state)),
    )  # fmt: skip
    return w.Drafts((draft,))


def dispatch_of(state: SessionState, read: ReadCode) -> SessionDispatch:
    """The dispatch of the session's best kernels. Raises CommandRejected where there is nothing to choose from."""
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
    settings = deciding([one for one, _ in chosen])
    served = [_served(one, kernel, read(kernel)) for one, kernel in chosen]
    first = _served(chosen[0][0], base, read(base)).member
    names = dict.fromkeys((first, *sorted({one.member for one in served}, key=_number)))
    groups = [[one for one in served if one.member == name] for name in names]
    dispatch = Dispatch(settings, tuple(_member(group, settings) for group in groups if group))
    title = columns.dispatch_title([one.name for one in dispatch.members])
    text = dispatch_text(dispatch, base.dialect, f"{title}: the nearest measured shape decides.")
    code = KernelCode(text, base.dialect, base.contract, f"dispatch{base.dialect.suffix}")
    if known := _kernel_with(state, text):
        raise CommandRejected(f"{known.id} is the dispatch of {', '.join(known.members)} already")
    return SessionDispatch(code, base.id, title, tuple(one.name for one in dispatch.members))


def deciding(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """The settings by whose values a dispatch chooses its kernel. Raises CommandRejected if the workloads differ in none."""
    found = deciding_settings(workloads)
    if not found:
        raise CommandRejected("the workloads of the suite differ in no setting that each of them states: nothing can decide")
    return found


def _kernel_with(state: SessionState, text: str) -> Kernel | None:
    """The kernel that has this text already, unless it failed."""
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return next((k for k in state.kernels.values() if k.source == digest and k.failure is None), None)


@dataclass(frozen=True, slots=True)
class _Served:
    """What runs on one workload: of a tuned kernel, the kernel that was tuned, with its values there."""

    workload: Workload
    member: str
    tunables: Mapping[str, int]
    code: str


def _served(workload: Workload, kernel: Kernel, code: KernelCode) -> _Served:
    if not is_dispatch(code.text, code.dialect):
        return _Served(workload, kernel.id, kernel.tunables, code.text)
    choice = parse_dispatch(code.text, code.dialect).choose(workload.settings)
    return _Served(workload, choice.member.name, choice.tunables, choice.member.code)


def _member(served: Sequence[_Served], settings: Sequence[str]) -> DispatchMember:
    """One kernel, with the shapes that it runs on. Its values are those of the first shape, where the others have no own."""
    first = served[0]
    shapes = tuple(
        DispatchShape(
            {name: one.workload.settings[name] for name in settings},
            {name: value for name, value in one.tunables.items() if first.tunables.get(name) != value},
        )
        for one in served
    )
    return DispatchMember(first.member, first.tunables, shapes, first.code)


def _number(kernel: str) -> int:
    return int(kernel[1:]) if kernel[1:].isdecimal() else 0
