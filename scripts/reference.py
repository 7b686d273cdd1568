"""The generated parts of the documentation's reference, as Markdown: ``python scripts/reference.py [PART ...]`` prints them.

Each part is made from what the program itself reads: commands from click, keys from the registry of actions, events and JSON
shapes from their dataclasses. A page asks for one with ``<!-- generate: PART -->``; ``scripts/mkdocs_hook.py`` puts it there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import itertools
import json
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import UnionType

import click
import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MARKER = re.compile(r"^<!-- generate: ([a-z-]+) -->$", re.MULTILINE)


def expand(markdown: str) -> str:
    """A page's text with every marker replaced by its part.

    Raises:
        KeyError: a marker names no part.
    """
    return MARKER.sub(lambda found: PARTS[found[1]](), markdown)


# Commands


def commands() -> str:
    """Every command with its usage, arguments and options."""
    from engine.cli.main import espalier

    root = click.Context(espalier, info_name="espalier")
    return "\n\n".join(_command_pages(espalier, root, 2))


_EVERYWHERE = ("--help", "--quiet", "--verbose")
"""Options of every command: the page names them once, under the program itself."""


def _command_pages(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield _command_page(command, context, level)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                inner = click.Context(found, info_name=name, parent=context)
                yield from _command_pages(found, inner, level + 1 if context.parent is not None else level)


def _command_page(command: click.Command, context: click.Context, level: int) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f"{'#' * level} {context.command_path}",
        f"```text\n{context.command_path} {usage}\n```",
        _prose(command.help or ""),
    ]
    options = [found for param in command.get_params(context) if (found := param.get_help_record(context)) is not None]
    hidden = _EVERYWHERE if context.parent is not None else ("--help",)
    rows = [(name, words) for name, words in options if words and not any(one in name for one in hidden)]
    if rows:
        parts.append(_table(("option", "meaning"), [(f"`{name}`", _words(words)) for name, words in rows]))
    epilog = inspect.cleandoc(command.epilog or "").replace("\b", "").strip()
    if epilog:
        parts.append(f"```text\n{epilog}\n```")
    return "\n\n".join(part for part in parts if part)


def _prose(text: str) -> str:
    """Help as Markdown: click's unwrapped paragraphs (marked with a backspace) as they are typed, the others as prose."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if "\b" in paragraph:
            parts.append(f"```text\n{paragraph.replace(chr(8), '').strip(chr(10))}\n```")
        else:
            parts.append(_words(paragraph))
    return "\n\n".join(parts)


def _words(text: str) -> str:
    """Prose on one line, with nothing that Markdown reads as HTML or as a footnote."""
    return re.sub(r"(?<!`)<(?=[A-Za-z/])", "&lt;", " ".join(text.split())).replace("[", "\\[")


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# Keys and the plan grammar


def keys() -> str:
    """Keys by screen, from the registry of actions."""
    from tui.actions import key_table

    return re.sub(r"^\*\*(.+)\*\*$", r"## \1", key_table(), flags=re.MULTILINE)


def plan_grammar() -> str:
    """The grammar of launch plans as ``scaffold --help`` prints it."""
    from engine.cli.main import espalier

    command = espalier.get_command(click.Context(espalier), "scaffold")
    assert command is not None
    text = inspect.cleandoc(command.epilog or "").replace("\b", "").strip("\n")
    return f"```text\n{text}\n```"


def prompts() -> str:
    """The templates of the prompts, whole."""
    folder = ROOT / "engine" / "ideas" / "prompts"
    files = sorted(folder.glob("*.md"))
    return "\n\n".join(f"## {file.name}\n\n````markdown\n{file.read_text(encoding='utf-8').strip()}\n````" for file in files)


# Dataclasses


def events() -> str:
    """The kinds of event that a journal holds."""
    from engine.domain import events as e

    types = [one for one in typing.get_args(e.Event) if one is not e.UnknownEvent]
    described = _Described(types)
    parts = [f"### {one.KIND}\n\n{described.text(one)}" for one in types]
    return "\n\n".join([*parts, "## Types of fields", *described.others(3)])


JSON_SHAPES: Mapping[str, str] = {
    "run, open, step, replay": "engine.report.facts.summary:Summary",
    "eval": "engine.report.text.verdict:Verdict",
    "eval --against (`against`)": "engine.report.text.head_to_head:HeadToHead",
    "rerun (each of `kernels`)": "engine.report.text.comparison:Rerun",
    "ablate (each of `steps`)": "engine.report.text.ablation:StepGain",
    "fork (`left_behind`)": "engine.report.facts.forks:LeftBehind",
    "idea list (each of `ideas`)": "engine.domain.state:Idea",
    "idea predictions (each of `predictions`)": "engine.domain.predictions:ScoredPrediction",
    "idea predictions (each of `authors`)": "engine.domain.predictions:PredictionRecord",
    "model prompts (each of `calls`)": "engine.domain.state:ModelCall",
    "problems (each of `problems`)": "engine.cli.lists:ShippedProblem",
    "doctor (each of `checks`)": "engine.cli.doctor:Check",
}
"""What ``--json`` prints → the dataclass that it is made from."""
JSON_OBSERVED: Mapping[str, tuple[str, ...]] = {
    "session list (each of `sessions`)": ("session", "list"),
    "session show": ("session", "show", "SESSION"),
    "session limits": ("session", "limits", "SESSION"),
    "kernel list (each of `kernels`)": ("kernel", "list", "SESSION"),
    "kernel show": ("kernel", "show", "SESSION", "k1"),
    "idea show": ("idea", "show", "SESSION", "i1"),
    "bank (each of `kernels`)": ("bank",),
    "model usage (each of `usage`)": ("model", "usage", "SESSION"),
}
"""Objects of no single dataclass → the command that is run on a recorded session to read off their fields."""
RECORDED = ROOT / "sessions" / "layernorm"


def json_shapes() -> str:
    """The objects of ``--json``, by command."""
    types = [_named(where) for where in JSON_SHAPES.values()]
    described = _Described(types)
    parts = [f"### {title}\n\n{described.text(one)}" for title, one in zip(JSON_SHAPES, types, strict=True)]
    parts += [f"### {title}\n\n{_observed(words)}" for title, words in JSON_OBSERVED.items()]
    return "\n\n".join([*parts, "## Types of fields", *described.others(3)])


def _observed(words: tuple[str, ...]) -> str:
    """The fields that a command prints for a recorded session; those of the first entry where it prints a list."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main_of_espalier([str(RECORDED) if word == "SESSION" else word for word in words] + ["--json"])
    assert status == 0, words
    found = json.loads(printed.getvalue())
    lists = [value for value in found.values() if isinstance(value, list)]
    row = lists[0][0] if len(lists) == 1 and lists[0] and len(found) <= 2 else found
    return _table(("field", "type"), [(f"`{name}`", _observed_type(value)) for name, value in row.items()])


def main_of_espalier(arguments: list[str]) -> int:
    """The program in this process."""
    from engine.cli.main import main as run

    return run(arguments)


def _observed_type(value: object) -> str:
    match value:
        case None:
            return "null, or as described elsewhere"
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case str():
            return "text"
        case list():
            return "list"
        case dict():
            return f"object: {', '.join(f'`{key}`' for key in value)}" if value and len(value) < 8 else "object"
    raise TypeError(type(value))


def _named(where: str) -> type:
    module, _, name = where.partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found


class _Described:
    """Dataclasses as tables of their fields, and the types that these mention."""

    def __init__(self, types: list[type]) -> None:
        self._here = set(types)
        self._mentioned: dict[type, None] = {}

    def text(self, one: type) -> str:
        """What the class says of itself, and its fields."""
        rows = [(f"`{name}`", self._spelled(kind), words) for name, kind, words in _fields_of(one)]
        return "\n\n".join(part for part in (_doc(one), _table(("field", "type", "meaning"), rows) if rows else "") if part)

    def others(self, level: int) -> list[str]:
        """The mentioned types that have no heading yet, each with its own."""
        parts, done = [], set(self._here)
        while waiting := [one for one in self._mentioned if one not in done]:
            for one in waiting:
                done.add(one)
                values = [(f"`{member.value}`", "") for member in one] if issubclass(one, Enum) else []
                body = ", ".join(value for value, _ in values) if values else self.text(one)
                doc = _doc(one) if values else ""
                parts.append("\n\n".join(part for part in (f"{'#' * level} {one.__name__}", doc, body) if part))
        return parts

    def _spelled(self, kind: object) -> str:
        if kind is type(None):
            return "null"
        origin, inner = typing.get_origin(kind), [k for k in typing.get_args(kind) if k is not ...]
        if origin in (typing.Union, UnionType):
            return " or ".join(dict.fromkeys(self._spelled(k) for k in inner))
        if origin is typing.Annotated:
            return self._spelled(inner[0])
        if origin in (dict, Mapping) or (inner and origin is not tuple and issubclass(typing.cast(type, origin), Mapping)):
            return f"object of {self._spelled(inner[1])}"
        if inner:
            return f"list of {' and '.join(dict.fromkeys(self._spelled(k) for k in inner))}"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return "table: " + ", ".join(f"`{f.name}`" for f in msgspec.structs.fields(kind))
        if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, Enum)):
            self._mentioned.setdefault(kind)
            return kind.__name__ if kind in self._here else f"[{kind.__name__}](#{kind.__name__.lower()})"
        return _PLAIN.get(kind, getattr(kind, "__name__", str(kind)))


_PLAIN: Mapping[object, str] = {
    str: "text",
    int: "number",
    float: "number",
    bool: "true or false",
    object: "anything",
    Path: "text",
}


def _fields_of(one: type) -> Iterator[tuple[str, object, str]]:
    """Name, type and attribute docstring of each field."""
    hints = typing.get_type_hints(one, include_extras=True)
    names = (
        [f.name for f in dataclasses.fields(one)]
        if dataclasses.is_dataclass(one)
        else [f.name for f in msgspec.structs.fields(one)]
    )
    words: dict[str, str] = {}
    for base in reversed(one.__mro__[:-1]):
        words |= _attribute_docs(base)
    for name in names:
        yield name, hints[name], words.get(name, "")


@functools.cache
def _attribute_docs(one: type) -> Mapping[str, str]:
    """Field → the docstring below it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
    except (OSError, TypeError):
        return {}
    found, body = {}, typing.cast(ast.ClassDef, tree.body[0]).body
    for line, after in itertools.pairwise(body):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value) if isinstance(after.value, ast.Constant) else ""
            found[line.target.id] = _code(text)
    return found


def _doc(one: type) -> str:
    text = one.__doc__ or ""
    return "" if text.startswith(f"{one.__name__}(") else _code(inspect.cleandoc(text))


def _code(text: str) -> str:
    """A docstring as Markdown, in the words of JSON."""
    return _words(text).replace("``", "`").replace("`None`", "`null`")


# Files


def _struct_table(where: str) -> Callable[[], str]:
    """The keys of a TOML file, from the structure it is decoded into."""

    def part() -> str:
        one = _named(where)
        described = _Described([one])
        rows = []
        for name, kind, words in _fields_of(one):
            field = next(f for f in msgspec.structs.fields(one) if f.name == name)
            rows.append((f"`{name}`", described._spelled(kind), "yes" if field.required else "no", words))
        return _table(("key", "type", "required", "meaning"), rows)

    return part


def exit_statuses() -> str:
    """What the program's exit status tells."""
    from engine.cli import exit_codes

    docs = _module_docs(exit_codes)
    values = {name: value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    return _table(("status", "meaning"), [(str(value), docs.get(name, "")) for name, value in values.items() if name[0] != "_"])


def _module_docs(module: object) -> Mapping[str, str]:
    tree = ast.parse(inspect.getsource(typing.cast(typing.Any, module)))
    found = {}
    for line, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(line, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[typing.cast(ast.Name, line.targets[0]).id] = _words(str(after.value.value))
    return found


def environment() -> str:
    """The environment variables that users may set."""
    from engine.cli.environment import variables

    rows = [(", ".join(f"`{one}`" for one in names.split(", ")), _NOW.sub("", words)) for names, words in variables()]
    return _table(("variable", "meaning"), rows)


_NOW = re.compile(r" (?:Sessions now|Now): .*")
"""What is in effect on the machine that builds the page."""


PARTS: Mapping[str, Callable[[], str]] = {
    "commands": commands,
    "environment": environment,
    "events": events,
    "exit-statuses": exit_statuses,
    "json": json_shapes,
    "keys": keys,
    "plan-grammar": plan_grammar,
    "playbook-toml": _struct_table("engine.ideas.playbook_file:_IdeaEntry"),
    "prices-toml": _struct_table("engine.ideas.models.prices:_PriceEntry"),
    "problem-toml": _struct_table("engine.problem.catalog:_ProblemToml"),
    "prompts": prompts,
}
"""Part → what makes its Markdown."""


def main() -> None:
    """Print the parts, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all without one")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]}; parts are {', '.join(PARTS)}")
    for name in options.parts or PARTS:
        sys.stdout.write(f"{PARTS[name]()}\n\n")


if __name__ == "__main__":
    main()
