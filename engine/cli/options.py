"""Options that several commands share, and parameter types that check and complete their values."""

from __future__ import annotations

import copy
import difflib
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from engine.cli.output import STDOUT
from engine.cli.ui import set_plain
from engine.domain import regimes, settings
from engine.domain.model_text import parse_duration
from engine.sandbox.include_trees import VARIABLE, checked_tree

_TUNE = re.compile(r"([A-Za-z_]\w*)=(-?\d{1,10})")


def was_typed(parameter: str) -> bool:
    """Whether the command line gave this parameter; a configuration file may set what this call has no use for."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


class InputPath(click.Path):
    """A path that is not empty: an unset shell variable expands to nothing, which pathlib takes for the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "":
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


class _Named(click.ParamType[str]):
    """A text that names something: not empty, for the same reason as a path."""

    def __init__(self, what: str) -> None:
        self.name = self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip():
            self.fail(f"the {self._what} is empty.", param, ctx)
        return str(value)


PATH = InputPath(path_type=Path)


class OutputPath(InputPath):
    """A file to write, or ``-`` for standard output. ``./-`` is a file of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return Path.cwd() / STDOUT if found == STDOUT and str(value) != str(STDOUT) else found


OUTPUT = OutputPath(path_type=Path)


class NewSessionPath(InputPath):
    """The folder of a new session: records name it, and they are UTF-8."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        try:
            str(found).encode()
        except UnicodeEncodeError:
            self.fail(f"{str(found)!a} is not UTF-8: choose another name", param, ctx)
        return found


NEW_SESSION = NewSessionPath(path_type=Path)
NAME = _Named("name")
ADDRESS = _Named("address")


def unknown_value(value: str, known: Sequence[str]) -> str:
    """``unknown value 'eagr': did you mean eager? Known: ...``, without the guess where none is near."""
    near = difflib.get_close_matches(value, known, 1, 0.6) or [name for name in known if value and name.startswith(value)][:1]
    guess = f"did you mean {near[0]!r}? It is one of" if near else "use one of"
    return f"unknown value {value[:100]!r}: {guess} {', '.join(known)}."


class KnownValue(click.Choice[str]):
    """One of a few words; suggests the nearest for another."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        return unknown_value(str(value), self.choices)


class Aliased(click.Option):
    """An option whose further names are accepted but not shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return click.Option.get_help_record(self._shown(), ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return click.Option.get_error_hint(self._shown(), ctx)

    def _shown(self) -> click.Option:
        shown = copy.copy(self)
        shown.opts = self.opts[:1]
        return shown


class _Completed(_Named):
    """A name that shells complete; ``kind`` is a function of ``engine.cli.completers``."""

    def __init__(self, kind: str) -> None:
        super().__init__("name")
        self.name = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        from engine.cli import completers

        return completers.complete(self.name, ctx, incomplete)


SESSION = _Completed("session")
PROBLEM = _Completed("problem")
KERNEL = _Completed("kernel")
IDEA = _Completed("idea")
CALL = _Completed("call")
SUBJECT = _Completed("subject")
"""A kernel, an idea or a round."""
SEED = _Completed("seed")
"""A file, or SESSION:K."""
DEVICE = _Completed("device")


class FiniteNumber(click.FloatRange):
    """A finite number within bounds; click's own range lets ``nan`` pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class OrNone(click.ParamType[Any]):
    """A value of another type, or ``none`` for no limit."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self._inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "none" if value == "none" else self._inner.convert(value, param, ctx)


class Duration(click.ParamType[float]):
    """A duration: ``90``, ``90s``, ``15m`` or ``2h``."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class ApprovalMode(click.ParamType[str]):
    """``ask``, ``ask:SECONDS`` or ``autopilot``."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if settings.Mode.parse(str(value)) is None:
            self.fail(f"unknown mode {value!r}: use ask, ask:SECONDS or autopilot.", param, ctx)
        return str(value)


class NameList(click.ParamType[tuple[str, ...]]):
    """Names from a fixed list, comma separated."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(name.strip() for name in str(value).split(",") if name.strip()))
        for name in names:
            if name not in self._known:
                self.fail(unknown_value(name, self._known), param, ctx)
        if not names:
            self.fail(f"give at least one of {', '.join(self._known)}.", param, ctx)
        return names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{name}") for name in self._known if name.startswith(last)]


class TunableValue(click.ParamType[tuple[str, int]]):
    """``NAME=VALUE``: a tunable's value."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        match = _TUNE.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not NAME=VALUE with a whole number.", param, ctx)
        return match.group(1), int(match.group(2))


def _show_headers(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> None:
    """Add the folders to those that compilers see. The environment hands them to every process that builds."""
    if given and not ctx.resilient_parsing:
        known = os.environ.get(VARIABLE, "")
        os.environ[VARIABLE] = os.pathsep.join([*(str(checked_tree(name)) for name in given), *filter(None, [known])])


include_option = click.option(
    "--include", type=_Named("path"), multiple=True, metavar="DIR", expose_value=False, callback=_show_headers,
    help="Folder of headers that kernels may include (CUTLASS, ThunderKittens); repeatable.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else.")
device_option = click.option(
    "--device", type=DEVICE, metavar="cpu|cuda:N", help="Device to run on. Default: the first GPU, else the CPU."
)
recorded_device_option = click.option(
    "--device", type=DEVICE, metavar="cpu|cuda:N", help="Device to run on. Default: the kind of device of the recording."
)
fleet_option = click.option(
    "--fleet", type=ADDRESS, metavar="local|local:N|ray|ADDRESS",
    help="Measure on several workers: every device of this machine (local), or those of a Ray cluster.",
)  # fmt: skip
suite_option = click.option(
    "--suite", type=NAME, metavar="NAME", help="Judge on this suite of workloads together, by geometric mean."
)
workload_option = click.option(
    "--workload", type=NAME, metavar="small|full", help="Which shapes. Default: full on a GPU, small on a CPU."
)
tolerance_option = click.option(
    "--tolerance", type=KnownValue(settings.TOLERANCES), default="class", show_default=True, metavar="POLICY",
    help=f"Tolerance of the correctness check: {', '.join(settings.TOLERANCES)}.",
)  # fmt: skip
hot_option = click.option("--hot", is_flag=True, help="Time with hot caches. Default: cold.")
regime_option = click.option(
    "--regime", type=click.Choice(regimes.CHOICES), default=regimes.AUTO,
    help="What decides: single calls at full clock, or sustained calls back to back. Default: auto, which is sustained on a "
    "GPU where operations are the bound.",
)  # fmt: skip
recorded_regime_option = click.option(
    "--regime", type=click.Choice(regimes.CHOICES), default=None,
    help="What decides. single: single calls only. sustained: every kernel back to back, too. Default: as in the session.",
)  # fmt: skip
fresh_option = click.option(
    "--fresh-baselines", is_flag=True, help="Measure every baseline again. Default: reuse what was measured before."
)
accept_option = click.option(
    "--accept-unverifiable", is_flag=True, help="Continue even if a trivial model passes the correctness check."
)
plain_option = click.option(
    "--plain", is_flag=True, expose_value=False, callback=set_plain, help="Lines and numbered choices instead of a screen."
)
headless_option = click.option("--headless", is_flag=True, help="No terminal UI: print progress lines, then the kernel tree.")
