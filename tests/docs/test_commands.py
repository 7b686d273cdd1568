"""Every command that the documentation shows is run, unless the page says that it needs a GPU or a key.

Here with a bench that computes nothing; those marked ``slow`` are run in ``test_real_commands.py``.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from docs.pages import NEEDS, PAGES, SHELL, WORDS, blocks, name, prose
from docs.shell import Shell

from engine.cli.main import espalier as program

WITH_COMMANDS = [page for page in PAGES if any(block.runs for block in blocks(page))]
_ANYTHING_ELSE = re.compile(r"^(?:\$ )?(?:espalier|pip install|python3?) ", re.MULTILINE)
_INLINE = re.compile(r"`(espalier [^`\n]+)`")
_PLACEHOLDERS = re.compile(r"…|\.\.\.|\[|\]|\|")


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_the_commands_of_a_page_run(shell: Shell, page: Path) -> None:
    for block in blocks(page):
        if "file" in block.note or (block.runs and "slow" not in block.note):
            shell.run(block)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_comment_above_a_block_is_understood(page: Path) -> None:
    for block in blocks(page):
        assert set(block.note) <= WORDS, f"{page}:{block.line}"
        if "needs" in block.note:
            assert block.language == SHELL, f"{page}:{block.line}"
            assert block.note["needs"] in NEEDS, f"{page}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_command_hides_in_a_block_that_is_not_run(page: Path) -> None:
    for block in blocks(page):
        if block.language != SHELL:
            assert not _ANYTHING_ELSE.search(block.text), f"{page}:{block.line}: commands belong into a block marked `{SHELL}`"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_that_are_named_exist_with_their_options(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # it names what commands were called before
    skipped = [command for block in blocks(page) if "needs" in block.note for command in block.commands]
    for command in [*_INLINE.findall(prose(page)), *(c for c in skipped if c.startswith("espalier "))]:
        _check(_PLACEHOLDERS.sub(" ", command), page)


def _check(text: str, page: Path) -> None:
    command: click.Command = program
    context = click.Context(program, info_name="espalier")
    words = shlex.split(text)[1:]
    while words and isinstance(command, click.Group):
        if words[0].startswith("-") or words[0].isupper():
            return
        found = command.get_command(context, words.pop(0))
        assert found is not None, f"{page}: `{text}` names no command"
        command, context = found, click.Context(found, info_name=found.name, parent=context)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known - {"--help"}
    assert not unknown, f"{page}: `{text}` has unknown options {unknown}"
