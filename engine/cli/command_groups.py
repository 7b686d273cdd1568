"""The groups of commands. A command's module is imported when the command is called.

Loads nothing of the engine outside this room, so that ``espalier --help`` answers at once.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from engine.cli import config
from engine.cli.command_table import FLEET, IDEA, KERNEL, MODEL, SESSION, Table
from engine.cli.suggestions import unknown_command

HELP = {"help_option_names": ["-h", "--help"]}


class CommandGroup(click.Group):
    """Commands by section, each imported on first use."""

    def __init__(self, sections: Mapping[str, Table], **attributes: Any) -> None:
        super().__init__(context_settings=HELP, **attributes)
        self.sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in self.sections.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in self.sections.values():
            if cmd_name in section:
                module, _, attribute = section[cmd_name][0].partition(":")
                command: click.Command = getattr(importlib.import_module(module), attribute)
                return command
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.get_command(ctx, args[0])
        if known is None and not ctx.resilient_parsing and not args[0].startswith("-"):
            parents = ctx.command_path.split()[1:]
            raise click.UsageError(unknown_command([*parents, *args[: 2 - len(parents)]]), ctx)
        name, found, rest = super().resolve_command(ctx, args)
        if found is not None and not ctx.resilient_parsing and not isinstance(found, click.Group):
            _apply_config([*ctx.command_path.split()[1:], str(name)], found, ctx, rest)
        return name, found, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


def _apply_config(path: Sequence[str], command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """Give the command the defaults of the configuration files. Help and ``doctor`` work with a faulty file too."""
    if path == ["doctor"] or set(args) & set(HELP["help_option_names"]):
        return
    ctx.default_map = {path[-1]: config.defaults(path, command, ctx)}
    if folders := config.include_folders():
        os.environ.setdefault("ESPALIER_INCLUDE", os.pathsep.join(folders))


def _group(name: str, table: Table, text: str) -> CommandGroup:
    return CommandGroup({"Commands": table}, name=name, help=text)


idea = _group("idea", IDEA, "Show, add, approve and order the ideas of a session.")
kernel = _group("kernel", KERNEL, "Show, seed, race and steer the kernels of a session.")
session = _group("session", SESSION, "List sessions, and steer one as a whole.")
model = _group("model", MODEL, "Prompts, replies, usage and open calls of a session's models.")
fleet = _group("fleet", FLEET, "Several workers for one session: see them, and start or stop Ray for them.")
