"""``config.toml`` and ``espalier.toml``: defaults for the options of commands.

The user's file applies everywhere. The nearest ``espalier.toml`` upwards from the working folder comes after it, and the
command line wins. A table per command (``[run]``, ``[session.list]``) holds option names and values. An ``espalier.toml`` comes
from whoever wrote the folder: it cannot set what runs a program, names a server or skips a question.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any

import click

from engine.cli.command_table import GROUPS, command_paths
from engine.cli.suggestions import number_words
from engine.journal.regular_file import open_regular
from engine.journal.user_folders import config_folder

BUILD = "build"
"""The table that belongs to no command."""
USER = "config.toml"
PROJECT = "espalier.toml"
_LARGEST = 1 << 20
_PROGRAM = "command:"
_PROPOSERS = ("proposer", "writer")
"""Options that can name a program, by ``command:``."""
_UNTRUSTED = ("include", "base-url", "seed-kernel", "browser", "force", "yes")
"""Options that an ``espalier.toml`` cannot set at all."""


class ConfigError(click.UsageError):
    """A configuration file that cannot be read or names something unknown; the message is complete."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that exists."""

    path: Path
    trusted: bool
    """Whether the user wrote it."""
    tables: Mapping[str, Any]


def user_file() -> Path:
    """``config.toml`` under ESPALIER_HOME, else in the user's configuration folder."""
    return config_folder() / USER


def project_file() -> Path | None:
    """The nearest ``espalier.toml`` upwards from the working folder."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    return next((place / PROJECT for place in (here, *here.parents) if os.path.lexists(place / PROJECT)), None)


def files() -> list[ConfigFile]:
    """The files in effect, the later ones over the earlier. Raises ConfigError, also for what is there and is no file:
    a search without the limits in it would cost more than its user allowed."""
    found = [(user_file(), True), (project_file(), False)]
    return [ConfigFile(path, trusted, _read(path)) for path, trusted in found if path is not None and os.path.lexists(path)]


def defaults(path: Sequence[str], command: click.Command, ctx: click.Context) -> dict[str, Any]:
    """The values that the files give the options of a command, by parameter name. Raises ConfigError."""
    values: dict[str, Any] = {}
    for file in files():
        check_commands(file)
        values |= _command_values(file, path, command, ctx)
    return values


def check_commands(file: ConfigFile) -> None:
    """Raises ConfigError for a table that names no command."""
    known = [".".join(path) for path in command_paths()]
    for name, table in _tables(file, GROUPS):
        if name not in known:
            raise ConfigError(f"{file.path}: unknown command [{name}]{_guess(name, known)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{file.path}: [{name}] is not a table of options")


def include_folders() -> tuple[str, ...]:
    """``[build] include`` of the user's file: folders of headers that kernels may include. Raises ConfigError."""
    folders: tuple[str, ...] = ()
    for file in files():
        table = file.tables.get(BUILD)
        if not isinstance(table, dict):
            continue
        if unknown := next((key for key in table if key != "include"), None):
            raise ConfigError(f"{file.path}: unknown option {unknown!r} in [{BUILD}]: known is 'include'")
        given = table.get("include", [])
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise ConfigError(f"{file.path}: [{BUILD}] include is not a list of folders")
        if not file.trusted:
            raise ConfigError(f"{file.path}: [{BUILD}] include: {PROJECT} cannot set it: use --include, or {user_file()}")
        folders = tuple(given)
    return folders


def _tables(file: ConfigFile, groups: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, table in file.tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{file.path}: {name} is outside a table: put it below a command such as [run]")
        if name == BUILD:
            continue
        if name not in groups:
            yield name, table
            continue
        for verb, inner in table.items():
            yield f"{name}.{verb}", inner


def _command_values(file: ConfigFile, path: Sequence[str], command: click.Command, ctx: click.Context) -> dict[str, Any]:
    table: Any = file.tables
    for name in path:
        table = table.get(name, {})
    options = {
        name.lstrip("-"): p for p in command.params if isinstance(p, click.Option) for name in p.opts if name[:2] == "--"
    }
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        place = f"{file.path}: [{'.'.join(path)}] {key}"
        if name not in options:
            raise ConfigError(f"{file.path}: unknown option {key!r} in [{'.'.join(path)}]{_guess(name, list(options))}")
        option = options[name]
        if not file.trusted:
            _refuse_untrusted(place, option.opts[0].lstrip("-"), value)
        values[str(option.name)] = _checked(place, option, value, command, ctx)
    return values


def _refuse_untrusted(place: str, name: str, value: object) -> None:
    if name in _UNTRUSTED or (name in _PROPOSERS and _PROGRAM in str(value).lower()):
        what = f"a {_PROGRAM} program" if name in _PROPOSERS else f"--{name}"
        raise ConfigError(f"{place}: {PROJECT} cannot set {what}: use the command line, or {user_file()}")


def _as_toml(value: object) -> str:
    """A value that is no text as the file spells it, rather than as Python does."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date | time) else repr(value)


def _checked(place: str, option: click.Option, value: object, command: click.Command, ctx: click.Context) -> Any:
    """The value as a command line would give it. Raises ConfigError for one that its option does not take."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise ConfigError(f"{place}: {value!r} is not true or false")
        return value
    listed = value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in listed):
        raise ConfigError(f"{place}: {_as_toml(value)} is not a text or a number")
    if len(listed) != 1 and not option.multiple:
        raise ConfigError(f"{place}: takes one value, not {len(listed)}")
    texts = [str(one) for one in listed]
    given: Any = texts if option.multiple else texts[0]
    try:
        option.type_cast_value(click.Context(command, parent=ctx, resilient_parsing=True), given)
    except click.BadParameter as error:
        raise ConfigError(f"{place}: {number_words(error.message.rstrip('.'))}") from error
    return given


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with open_regular(path) as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): correct or remove it") from error
    if len(data) > _LARGEST:
        raise ConfigError(f"{path} is larger than {_LARGEST >> 20} MiB")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _guess(name: str, known: Sequence[str]) -> str:
    near = [one for one in known if one.endswith(f".{name}")][:1] or difflib.get_close_matches(name, known, 1, 0.6)
    return f": did you mean {near[0]!r}?" if near else f": known are {', '.join(known[:40])}"
