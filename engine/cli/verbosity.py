"""``-q/--quiet`` and ``-v/--verbose``: how much a command prints. Accepted before the command and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])
_KEY = "espalier.verbosity"
"""Key of click's shared context: ``quiet``, ``verbose`` or absent."""


def quiet() -> bool:
    """Whether the user asked for neither progress nor advice."""
    return _chosen() == "quiet"


def verbose() -> bool:
    """Whether the user asked for every step."""
    return _chosen() == "verbose"


def _chosen() -> str:
    context = click.get_current_context(silent=True)
    return str(context.meta.get(_KEY, "")) if context is not None else ""


def _choose(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given:
        ctx.meta[_KEY] = param.name


def verbosity_options() -> list[click.Option]:
    """Both options, new for each command."""
    return [
        click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=_choose,
                     help="Print results only."),
        click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, callback=_choose,
                     help="Print every step: compiler output, model output, the time of each piece of work."),
    ]  # fmt: skip


def verbosity(function: _F) -> _F:
    """Gives a command both options."""
    quiet_option, verbose_option = verbosity_options()
    function.__dict__.setdefault("__click_params__", []).extend([verbose_option, quiet_option])
    return function
