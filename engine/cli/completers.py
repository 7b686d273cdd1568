"""What a shell completes: sessions, problems, and the kernels, ideas and calls of the session already typed.

Never raises: a session that cannot be read completes to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from engine.domain.state import SessionState

_MOST = 500


def complete(kind: str, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
    """The completions of ``incomplete`` for a parameter of this kind."""
    try:
        found = [item for item in _FINDERS[kind](ctx, incomplete) if str(item.value).startswith(incomplete)][:_MOST]
    except Exception:  # a completion prints no traceback into somebody's prompt
        return []
    return found or ([CompletionItem(incomplete, type="file")] if kind in _OR_FILES else [])


def _sessions(ctx: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    from engine.journal import store

    return [CompletionItem(name) for name in dict.fromkeys(folder.name for folder in store.folders())]


def _problems(ctx: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    from engine.problem import catalog

    return [CompletionItem(name) for name in catalog.shipped_names()]


def _kernels(ctx: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    state = _state(_session(ctx))
    return [CompletionItem(k.id, help=_title(state, k.idea)) for k in state.kernels.values()]


def _ideas(ctx: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    state = _state(_session(ctx))
    typed = ctx.params.get("ideas") or ()
    return [CompletionItem(i.id, help=_title(state, i.id)) for i in state.ideas.values() if i.id not in typed]


def _calls(ctx: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    state = _state(_session(ctx))
    return [CompletionItem(c.id, help=f"{c.role.value} {c.model}") for c in state.calls.values()]


def _subjects(ctx: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    state = _state(_session(ctx))
    return [*_kernels(ctx, incomplete), *_ideas(ctx, incomplete), *(CompletionItem(f"r{n}") for n in state.rounds)]


def _seeds(ctx: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    session, colon, _ = incomplete.rpartition(":")
    return [CompletionItem(f"{session}:{k}") for k in _state(session).kernels] if colon else []


def _devices(ctx: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    from engine.session.devices import devices

    return [CompletionItem(label, help=name) for label, name in devices()]


def _session(ctx: click.Context) -> str:
    """The session already typed. Click leaves arguments unparsed while an option waits for its value."""
    typed = ctx.params.get("session") or next(iter(ctx.args), "")
    return str(typed)


def _state(session: str) -> SessionState:
    from engine.journal import store

    return store.state_of(store.resolve(session))


def _title(state: SessionState, idea: str) -> str:
    known = state.ideas.get(idea)
    return " ".join(known.text.title.split()) if known else ""


_FINDERS: Mapping[str, Callable[[click.Context, str], Iterable[CompletionItem[Any]]]] = {
    "session": _sessions, "problem": _problems, "kernel": _kernels, "idea": _ideas, "call": _calls, "subject": _subjects,
    "seed": _seeds, "device": _devices,
}  # fmt: skip
_OR_FILES = ("session", "problem", "seed")
