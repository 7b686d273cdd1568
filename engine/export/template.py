"""Prepares the templates of an exported module: fills in constants and renames clashing names.

A template is a Python file that imports, lints and type-checks by itself. The copy omits what only serves that: its docstring,
imports from this program, and the stand-in for the reference's ``Model``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from engine.domain import python_syntax
from engine.problem.files.reference_code import bound_names

_FOLDER = Path(__file__).with_name("templates")
_STAND_IN = "Model"
_SHARED = frozenset({"torch", "Model", "ModelNew"})
"""Names with the same meaning in the reference and in a template."""


def template(name: str) -> str:
    """The template's text, without the parts that only the template needs."""
    text = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for statement in reversed(python_syntax.parse(text).body):
        if _is_its_own(statement):
            del lines[statement.lineno - 1 : statement.end_lineno]
    return re.sub(r"\n{4,}", "\n\n\n", "".join(lines)).strip() + "\n"


def _is_its_own(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.ImportFrom(module=str(module)):
            return module.startswith("engine.")
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name == _STAND_IN
    return False


def keep_apart(text: str, taken: Collection[str]) -> str:
    """``text`` with ``_`` appended to each of its module-level names that is in ``taken``, until no other name is like that.

    A module that was exported, read and exported again has renamed names of its own.
    """
    clashes = (set(bound_names(python_syntax.parse(text))) & set(taken)) - _SHARED
    if not clashes:
        return text
    used = {*re.findall(r"\w+", text), *taken}
    names: dict[str, str] = {}
    for name in sorted(clashes):
        names[name] = _unused(name, used)
        used.add(names[name])
    pattern = re.compile(rf"(?<![\w.])({'|'.join(sorted(clashes))})\b")
    return "".join(_renamed(line, pattern, names) for line in text.splitlines(keepends=True))


def _unused(name: str, used: Collection[str]) -> str:
    while name in used:
        name += "_"
    return name


def _renamed(line: str, pattern: re.Pattern[str], names: Mapping[str, str]) -> str:
    found = re.match(r"(from \S+ )?import ", line)
    if found is None:
        return pattern.sub(lambda one: names[one[1]], line)
    return found.group() + pattern.sub(lambda one: f"{one[1]} as {names[one[1]]}", line[found.end() :])


def fill(text: str, values: Mapping[str, str]) -> str:
    """``text`` with these expressions as the values of its module-level constants, including renamed ones."""
    lines = text.splitlines(keepends=True)
    missing = set(values)
    for statement in reversed(python_syntax.parse(text).body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as old):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as old):
                pass
            case _:
                continue
        name = name.rstrip("_")
        if name in missing:
            missing.discard(name)
            head = lines[old.lineno - 1][: old.col_offset]
            lines[old.lineno - 1 : old.end_lineno] = [f"{head}{values[name]}\n"]
    assert not missing, f"no template has {', '.join(sorted(missing))}"
    return "".join(lines)


def literal(text: str) -> str:
    """A raw string literal if the text allows it, else an escaped one."""
    if "'''" not in text and not text.endswith(("\\", "'")) and "\r" not in text:
        return f"r'''{text}'''"
    return repr(text)
