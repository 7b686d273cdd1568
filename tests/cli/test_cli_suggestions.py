"""Typos and guesses: one line with the nearest command, option, value, problem or session, and exit status 2."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from support.program import Call

from engine.cli.command_table import GROUPS, SECTIONS, command_paths
from engine.cli.main import espalier as program
from engine.cli.suggestions import MOVED, SYNONYMS, VERBS, unknown_command

PATHS = {" ".join(path) for path in command_paths()}


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("rum", "run"), ("evel", "eval"), ("replya", "replay"), ("doktor", "doctor"), ("sesion list", "session list"),
        ("kernels", "kernel list"), ("ideas", "idea list"), ("bench", "eval"), ("compare", "kernel race"),
        ("cost", "model usage"),
        ("tokens", "model usage"), ("resume", "open"), ("ls", "session list"), ("list", "session list"),
        ("show", "session show"),
        ("new", "run"), ("start", "run"), ("delete", "session delete"), ("import", "session import"), ("log", "replay"),
        ("watch", "follow"), ("continue", "session resume"), ("stop", "session pause"), ("finish", "session end"),
        ("spend", "model usage"), ("again", "kernel remeasure"), ("seed", "kernel seed"), ("sessions", "session list"),
        ("prune", "kernel prune"), ("close", "session end"), ("profile", "kernel profile"), ("note", "session note"),
        ("idea aprove", "idea approve"), ("idea ls", "idea list"), ("kernel again", "kernel remeasure"),
        ("kernel compare", "kernel race"), ("kernel approve", "kernel accept"), ("session close", "session end"),
        ("session open", "open"), ("model cost", "model usage"), ("session usage", "model usage"),
        ("kernel approv", "kernel accept"),
        ("model accept", "kernel accept"), ("idea run", "run"),
        ("move", "export"), ("transfer", "export"), ("share", "export"), ("archive", "export"), ("backup", "export"),
        ("why", "kernel show"), ("reason", "kernel show"), ("rejected", "kernel show"), ("explain", "kernel show"),
        ("inject", "kernel seed"), ("compile", "run"), ("clean", "doctor"), ("gc", "doctor"), ("cache", "doctor"),
        ("undo", "kernel reopen"), ("session stop", "session pause"), ("ollama", "run"), ("vllm", "run"), ("llama", "run"),
        ("kernel why", "kernel show"), ("kernel reason", "kernel show"), ("kernel rejected", "kernel show"),
        ("session move", "export"), ("histroy", "session list"), ("bdget", "session limits"),
    ],
)  # fmt: skip
def test_a_word_that_is_no_command_suggests_one(espalier: Call, typed: str, found: str) -> None:
    line = espalier(*typed.split()).error_line()
    assert line.startswith("espalier: unknown command '")
    assert line.endswith(f": did you mean `espalier {found}`?\n")


@pytest.mark.parametrize("typed", ["xyzzy", "1234", "Ω", "x" * 5000, "login", "server", "local", "timeout", "sync", "upload"])
def test_a_word_near_nothing_points_to_the_help(espalier: Call, typed: str) -> None:
    line = espalier(typed).error_line()
    assert line.endswith(": run `espalier --help` for usage\n")
    assert len(line) < 300


def test_every_suggestion_is_a_command() -> None:
    targets = {*SYNONYMS.values(), *MOVED.values()} | {
        f"{group} {verb}" for group, verbs in VERBS.items() for verb in verbs.values()
    }
    assert targets - {"--version", "--help"} <= PATHS


def test_no_synonym_hides_a_command() -> None:
    tops = {name for section in SECTIONS.values() for name in section}
    assert not tops & SYNONYMS.keys()
    for group, verbs in VERBS.items():
        assert not GROUPS[group].keys() & verbs.keys()


def test_every_flat_name_of_the_past_is_answered() -> None:
    past = """seed pin unpin prune reopen again race cancel accept discard note instruct mode limits pause continue close
    prompts answer spend profile sessions""".split()
    for name in past:
        assert f"`espalier {SYNONYMS[name]}`" in unknown_command([name])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "softmx"), "unknown problem 'softmx': did you mean 'softmax'?"),
        (("run", "softmax", "--round", "3"), "unknown option '--round': did you mean --rounds?"),
        (("run", "softmax", "--cost", "5"), "unknown option '--cost': did you mean --budget-usd?"),
        (("run", "softmax", "--max-cost", "5"), "unknown option '--max-cost': did you mean --budget-usd?"),
        (("session", "limits", "scripted", "--usd", "5"), "unknown option '--usd': did you mean --budget-usd?"),
        (("run", "softmax", "--model", "x"), "unknown option '--model': did you mean --proposer?"),
        (("run", "softmax", "--tolerance", "clas"), "unknown value 'clas': did you mean 'class'?"),
        (("run", "softmax", "--baseline", "compil"), "unknown value 'compil': did you mean 'compile'?"),
        (("run", "softmax", "--baselines", "eagr"), "unknown value 'eagr': did you mean 'eager'?"),
        (("eval", "conv2", "x.cpp"), "unknown problem 'conv2': did you mean 'conv2d'"),
        (("session", "show", "scriptd"), "unknown session 'scriptd': did you mean 'scripted'?"),
        (("kernel", "show", "scripted", "k99"), "unknown kernel 'k99' in scripted: "),
        (("idea", "show", "scripted", "i99"), "unknown idea 'i99' in scripted: `espalier idea list scripted`"),
        (("model", "prompts", "scripted", "c99"), "unknown call 'c99' in scripted: `espalier model prompts scripted`"),
        (("export", "scripted", "--format", "bundel"), "unknown value 'bundel': did you mean 'bundle'?"),
        (("completion", "bsh"), "unknown value 'bsh': did you mean 'bash'?"),
        (("idea", "list", "scripted", "--awiting"), "unknown option '--awiting': did you mean --awaiting?"),
    ],
)
def test_what_is_near_something_known_is_named(espalier: Call, recorded: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in espalier(*arguments).error_line()


def _commands(group: click.Group, ctx: click.Context) -> list[tuple[str, click.Command]]:
    found = []
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        inner = click.Context(command, parent=ctx, info_name=name)
        found += _commands(command, inner) if isinstance(command, click.Group) else [(inner.command_path, command)]
    return found


COMMANDS = dict(_commands(program, click.Context(program, info_name="espalier")))


def test_the_table_and_the_commands_agree() -> None:
    assert set(COMMANDS) == {f"espalier {path}" for path in PATHS}
    for path, command in COMMANDS.items():
        assert path.split()[-1] == command.name


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help(espalier: Call, path: str) -> None:
    result = espalier(*path.split()[1:], "--help")
    assert result.status == 0
    assert result.out.startswith(f"Usage: {path} ")


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_a_line_of_help(path: str) -> None:
    for option in COMMANDS[path].params:
        if isinstance(option, click.Option) and option.name != "title":
            assert option.help, option.opts


WITHOUT_JSON = {"espalier follow", "espalier scaffold", "espalier completion", "espalier mcp"}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_that_a_script_reads_has_json(path: str) -> None:
    options = {name for option in COMMANDS[path].params for name in option.opts}
    assert ("--json" in options) != (path in WITHOUT_JSON)


@pytest.mark.parametrize("path", [*"run open step rerun ablate eval scaffold replay".split(), "kernel profile"])
def test_what_runs_something_can_be_quiet_and_verbose(path: str) -> None:
    options = {name for option in COMMANDS[f"espalier {path}"].params for name in option.opts}
    assert {"-q", "--quiet", "-v", "--verbose"} <= options


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_prints_its_help(espalier: Call, group: str) -> None:
    result = espalier(group)
    assert result.status == 0
    assert result.out == espalier(group, "--help").out
