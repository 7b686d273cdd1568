"""Options that several commands share, and parameter types that check their values before a command begins."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click

from engine.domain import settings

BASELINES = ("eager", "eager_tf32", "compile", "compile_max")
TOLERANCES = ("class", "class:fp32", "class:tf32", "class:half", "crfm", "kernelbench")
_TUNE = re.compile(r"([A-Za-z_]\w*)=(-?\d{1,10})")


class _FilePath(click.Path):
    """A path that is not empty: an unset shell variable expands to nothing, and pathlib takes that for the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "":
            self.fail("an empty word is no path.", param, ctx)
        return super().convert(value, param, ctx)


PATH = _FilePath(path_type=Path)


class FiniteNumber(click.FloatRange):
    """A finite number within bounds; click's own range lets ``nan`` pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


class Duration(click.ParamType[float]):
    """A duration: ``90``, ``90s``, ``15m`` or ``2h``."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", str(value))
        if match is None or not 0 < float(match.group(1)) < math.inf:
            self.fail(f"{value!r} is no duration: use seconds (90), minutes (15m) or hours (2h).", param, ctx)
        return float(match.group(1)) * {"s": 1, "m": 60, "h": 3600}[match.group(2) or "s"]


class ApprovalMode(click.ParamType[str]):
    """``ask``, ``ask:SECONDS`` or ``autopilot``."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if settings.Mode.parse(str(value)) is None:
            self.fail(f"{value!r} is no mode: use ask, ask:SECONDS or autopilot.", param, ctx)
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
                self.fail(f"{name!r} is unknown: use {', '.join(self._known)}.", param, ctx)
        if not names:
            self.fail(f"name at least one of {', '.join(self._known)}.", param, ctx)
        return names


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


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else there.")
device_option = click.option("--device", metavar="cpu|cuda:N", help="Where to run. Default: the first GPU, else the CPU.")
workload_option = click.option("--workload", metavar="small|full", help="Which shapes. Default: full on a GPU, small on a CPU.")
tolerance_option = click.option(
    "--tolerance", type=click.Choice(TOLERANCES), default="class", show_default=True, metavar="POLICY",
    help=f"What counts as right: {', '.join(TOLERANCES)}.",
)  # fmt: skip
hot_option = click.option("--hot", is_flag=True, help="Time with caches as the last call left them; default: cold.")
fresh_option = click.option(
    "--fresh-baselines", is_flag=True, help="Measure further baselines anew too; default: those kept from earlier runs count."
)
accept_option = click.option(
    "--accept-unverifiable", is_flag=True, help="Go on although a model that computes nothing passes the gate."
)
