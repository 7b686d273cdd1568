"""The options about models that `run` and `model set` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import click

from engine.cli import options as o
from engine.domain.model_text import ROLES, parse_server
from engine.domain.settings import (
    ALL_ROLES,
    CONCURRENCIES,
    EFFORTS,
    OUTPUTS,
    TEMPERATURES,
    CallOptions,
    ModelServer,
    ModelSettings,
)

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class ServerOption(click.ParamType[ModelServer]):
    """``NAME=URL[,key=VARIABLE][,api=chat|responses]``; an empty URL is the provider's own server."""

    name = "server"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ModelServer:
        if isinstance(value, ModelServer):
            return value
        try:
            return parse_server(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class ForRole(click.ParamType[tuple[str, Any]]):
    """``VALUE`` for all calls, or ``ROLE=VALUE``; ``none`` or ``default`` leaves the choice to the provider."""

    def __init__(self, inner: click.ParamType[Any], *, unset: str = "none") -> None:
        self._inner = inner
        self._unset = unset
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        role, equals, text = str(value).rpartition("=")
        if equals and role not in ROLES:
            self.fail(o.unknown_value(role, ROLES), param, ctx)
        return role or ALL_ROLES, None if text == self._unset else self._inner.convert(text, param, ctx)


_PATIENCE = o.Duration()


class WaitTime(click.ParamType[float]):
    """A duration, or 0."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return 0.0 if str(value) == "0" else float(_PATIENCE.convert(value, param, ctx))


_OPTIONS = (
    click.option("--server", "servers", type=ServerOption(), multiple=True, metavar="NAME=URL[,key=VARIABLE][,api=chat]",
                 help="Address of a proposer, or of all models of a provider, and the variable with the key. Repeatable."),
    click.option("--effort", "effort", type=ForRole(o.KnownValue(EFFORTS), unset="default"), multiple=True,
                 metavar="[ROLE=]EFFORT",
                 help=f"How much models reason: {', '.join(EFFORTS)}. ROLE: ideas, code or repair; else all. Repeatable."),
    click.option("--temperature", "temperature", type=ForRole(o.FiniteNumber(*TEMPERATURES)), multiple=True, metavar="[ROLE=]T",
                 help="Sampling temperature, for models that accept one."),
    click.option("--max-output", "max_output", type=ForRole(click.IntRange(*OUTPUTS)), multiple=True,
                 metavar="[ROLE=]N", help="Maximum tokens of a reply with reasoning. Default: 16000 for ideas, else 32000."),
    click.option("--timeout", "timeout", type=ForRole(o.Duration()), multiple=True, metavar="[ROLE=]TIME",
                 help="Time limit of one attempt at a call. Default: 20m."),
    click.option("--patience", type=WaitTime(), metavar="TIME",
                 help="How long to wait at rate limits and outages before the session stops. Default: 1h."),
    click.option("--concurrency", type=click.IntRange(*CONCURRENCIES), metavar="N",
                 help="Concurrent calls to one provider. Default: 4."),
    click.option("--profiling/--no-profiling", "profiling", default=None,
                 help="Read the hardware counters of a round's parents before a model is asked for ideas. Default: read them."),
)  # fmt: skip
_WHOLE = ("source", "writer", "patience", "concurrency", "profiling")
_PER_ROLE = ("effort", "temperature", "max_output", "timeout")


def model_options(function: Decorated) -> Decorated:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def changed(models: ModelSettings, given: Mapping[str, Any]) -> ModelSettings:
    """``models`` with the given options; those that are not given stay."""
    servers = {server.proposer: server for server in models.servers}
    servers.update({server.proposer: server for server in given["servers"]})
    kept = tuple(server for server in servers.values() if server.url or server.key or server.api)
    plain = {name: given[name] for name in _WHOLE if given.get(name) is not None}
    return replace(models, servers=kept, options=_options(models.options, given), **plain)


def _options(known: Mapping[str, CallOptions], given: Mapping[str, Any]) -> dict[str, CallOptions]:
    options = dict(known)
    for name in _PER_ROLE:
        pairs: Iterable[tuple[str, Any]] = given[name]
        for role, value in pairs:
            given_here: dict[str, Any] = {name: "" if name == "effort" and value is None else value}
            options[role] = replace(options.get(role, CallOptions()), **given_here)
    return {role: value for role, value in options.items() if value != CallOptions()}
