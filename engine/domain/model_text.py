"""Settings of models as people write them, on the command line and in the form of the terminal UI. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from engine.domain.model import CallRole
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

ROLES = (ALL_ROLES, *CallRole)
YES, NO = "yes", "no"
_SERVER = re.compile(r"([^=]+?)=([^,]*)((?:,\w+=[^,]*)*)")
_SERVER_HINT = "write NAME=URL[,key=VARIABLE][,api=chat|responses], for example vllm=http://gpu1:8000/v1"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def parse_server(text: str) -> ModelServer:
    """``NAME=URL[,key=VARIABLE][,api=chat|responses]``; an empty URL is the provider's own server. Raises ValueError."""
    match = _SERVER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:100]!r} is not a server: {_SERVER_HINT}")
    given = dict(part.split("=", 1) for part in match[3].split(",") if part)
    if unknown := sorted(given.keys() - {"key", "api"}):
        raise ValueError(f"unknown {unknown[0]!r} of a server: {_SERVER_HINT}")
    key = given.get("key", "")
    if key and not re.fullmatch(r"[A-Za-z_]\w*", key):
        raise ValueError("key= names the environment variable that holds the key; the key itself would be recorded")
    return ModelServer(match[1].strip(), match[2].strip(), key, given.get("api", ""))


def server_text(server: ModelServer) -> str:
    """A server as ``parse_server`` reads it."""
    key, api = server.key and f",key={server.key}", server.api and f",api={server.api}"
    return f"{server.proposer}={server.url}{key}{api}"


def parse_duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``15m`` or ``2h``. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) if match is not None else 0.0
    if match is not None and seconds == 0.0:
        raise ValueError(f"{text[:100]!r} is too short: give a time above zero, in seconds (90), minutes (15m) or hours (2h)")
    if match is None or not seconds < math.inf:
        raise ValueError(f"{text[:100]!r} is not a duration: use seconds (90), minutes (15m) or hours (2h)")
    return seconds * _UNITS[match[2] or "s"]


def duration_text(seconds: float) -> str:
    """A duration as ``parse_duration`` reads it."""
    for unit, scale in _UNITS.items():
        if seconds >= scale and math.isclose(seconds % scale, 0.0):
            return f"{seconds / scale:.15g}{unit}"
    return f"{seconds:.15g}s"


def models_text(models: ModelSettings) -> dict[str, str]:
    """The settings as texts: proposers, writer, servers and options apart by spaces, options as ``ROLE=VALUE``."""
    return {
        "source": models.source,
        "writer": models.writer,
        "servers": " ".join(server_text(server) for server in models.servers),
        **{name: _roles_text(models.options, name) for name in _OPTIONS},
        "patience": duration_text(models.patience) if models.patience else "0",
        "concurrency": str(models.concurrency),
        "profiling": YES if models.profiling else NO,
    }


def parse_models(texts: Mapping[str, str], before: ModelSettings) -> ModelSettings:
    """The settings that ``models_text`` gives these texts. Raises ValueError, which begins with the setting's name."""
    given = {name: text.strip() for name, text in texts.items()}
    options: dict[str, CallOptions] = {}
    for name, parse in _OPTIONS.items():
        for part in given[name].split():
            role, value = _about(name, partial(_for_role, part, parse))
            options[role] = replace(options.get(role, CallOptions()), **{name: value})
    patience = given["patience"]
    return replace(
        before,
        source=given["source"],
        writer=given["writer"],
        servers=tuple(_about("servers", lambda: [parse_server(part) for part in given["servers"].split()])),
        options=options,
        patience=0.0 if patience == "0" else _about("patience", lambda: parse_duration(patience)),
        concurrency=_about("concurrency", lambda: _whole(given["concurrency"], *CONCURRENCIES)),
        profiling=_about("profiling", lambda: _yes(given["profiling"])),
    )


def _yes(text: str) -> bool:
    if text not in (YES, NO):
        raise ValueError(f"{text[:40]!r} is neither {YES} nor {NO}")
    return text == YES


def _about(name: str, parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except ValueError as error:
        raise ValueError(f"{name.replace('_', ' ')}: {error}") from None


def _roles_text(options: Mapping[str, CallOptions], name: str) -> str:
    parts = []
    for role, of_role in options.items():
        value = getattr(of_role, name)
        if value not in (None, ""):
            text = duration_text(value) if name == "timeout" else value if name == "effort" else f"{value:.15g}"
            parts.append(text if role == ALL_ROLES else f"{role}={text}")
    return " ".join(parts)


def _for_role(text: str, parse: Callable[[str], Any]) -> tuple[str, Any]:
    role, equals, value = text.rpartition("=")
    if equals and role not in ROLES:
        raise ValueError(f"unknown role {role[:40]!r}: use {', '.join(ROLES)}")
    return role or ALL_ROLES, parse(value)


def _effort(text: str) -> str:
    if text not in EFFORTS:
        raise ValueError(f"unknown value {text[:40]!r}: use {', '.join(EFFORTS)}")
    return text


def _number(text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise ValueError(f"{text[:40]!r} is not a number from {low:g} to {high:g}")
    return number


def _whole(text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ValueError(f"{text[:40]!r} is not a whole number from {low:,} to {high:,}")
    return int(text)


_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "effort": _effort,
    "temperature": lambda text: _number(text, *TEMPERATURES),
    "max_output": lambda text: _whole(text, *OUTPUTS),
    "timeout": parse_duration,
}
"""The options of a role's calls, with their parsers."""
