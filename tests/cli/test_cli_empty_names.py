"""An empty name, path or address is one line and exit status 2: an unset shell variable expands to nothing."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from support.program import Call

from engine.cli.main import espalier as program

TEXTS = {
    "idea add TITLE", "idea add --why", "idea edit --title", "idea edit --why", "idea reject REASON", "kernel note TEXT",
    "kernel accept NOTE", "session instruct TEXT", "session note TEXT",
    "rerun --kernels",
}  # fmt: skip
"""Texts and a list, which the command judges itself. An empty one takes instructions or a rationale away."""
DEFAULTS = {"idea edit --writer", "model set --writer"}
"""Where an empty name is documented as the default."""


def parameters(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Parameter, click.Context]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from parameters(found, (*path, name))
        return
    for one in command.params:
        if isinstance(one, click.Argument) or not (one.is_flag or one.count):  # type: ignore[attr-defined]
            name = one.opts[0] if isinstance(one, click.Option) else one.human_readable_name.rstrip(".").strip("[]")
            yield " ".join((*path, name)), one, context


FOUND = {name: (one, context) for name, one, context in parameters(program) if not name.endswith("--reason")}


@pytest.mark.parametrize("name", sorted(FOUND.keys() - TEXTS - DEFAULTS))
def test_no_option_takes_an_empty_value(name: str) -> None:
    one, context = FOUND[name]
    with pytest.raises(click.BadParameter):
        one.type.convert("", one, context)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fleet", "status", ""), "invalid value for '[SESSION]': the name is empty"),
        (("fleet", "start", "--listen", ""), "invalid value for '--listen': the address is empty"),
        (("run", "softmax", "--fleet", ""), "invalid value for '--fleet': the address is empty"),
        (("run", "softmax", "--include", ""), "invalid value for '--include': the path is empty"),
        (("open", " "), "invalid value for 'SESSION': the name is empty"),
    ],
)
def test_an_empty_name_is_one_line(espalier: Call, arguments: tuple[str, ...], words: str) -> None:
    assert words in espalier(*arguments).error_line()
