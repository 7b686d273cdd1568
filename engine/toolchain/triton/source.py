"""Reads a Triton file without running it: its ``@jit`` functions and the configurations of ``@triton.autotune``."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from engine.domain import python_syntax
from engine.domain.errors import KernelCodeError
from engine.toolchain.triton.literals import Literals, NotLiteral

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Options of Triton's compiler that a launch, a tunable or a configuration can set."""
MAX_CONFIGURATIONS = 256
_DEFAULTS = {"num_warps": 4, "num_stages": 3}
"""What ``triton.Config`` sets without being told."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a ``@jit`` function; ``constexpr``: annotated ``tl.constexpr``."""

    name: str
    constexpr: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class Configurations:
    """The configurations of one ``@triton.autotune``: values by name, the same names in each, the first the default."""

    function: str
    listed: tuple[Mapping[str, int], ...]
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class JitFunction:
    """One launchable function."""

    name: str
    parameters: tuple[Parameter, ...]
    line: int
    computed: frozenset[str] = frozenset()
    """Parameters that ``@triton.heuristics`` computes."""


def jit_functions(code: str) -> Mapping[str, JitFunction]:
    """The ``@jit`` functions at the top level of a file, by name.

    Raises:
        KernelCodeError: a file that is not Python, or a function with ``*args``.
    """
    return {one.name: _function(one) for one in _top_level(code) if any(_word(d) == "jit" for d in one.decorator_list)}


def autotuned(code: str) -> tuple[Configurations, ...]:
    """The configurations of every ``@triton.autotune`` of a file, read statically.

    Raises:
        KernelCodeError: a file that is not Python, or configurations that are not literals.
    """
    if "autotune" not in code:
        return ()
    return tuple(
        _configurations(function.name, decorator, _tree(code))
        for function in _top_level(code)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and _word(decorator) == "autotune"
    )


@lru_cache(maxsize=16)
def _tree(code: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return python_syntax.parse(code)
    except SyntaxError as error:
        raise KernelCodeError(f"not Python: {error.msg}", error.lineno or 0, error.offset or 0) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise KernelCodeError(f"not Python: {error or 'nested too deeply'}") from error


def _top_level(code: str) -> Iterator[ast.FunctionDef]:
    """Functions of the module, also below a plain ``if`` or ``try``."""
    pending: list[ast.stmt] = list(reversed(_tree(code).body))
    while pending:
        statement = pending.pop()
        if isinstance(statement, ast.FunctionDef):
            yield statement
        elif isinstance(statement, ast.If | ast.Try):
            pending += reversed(statement.body)


def _word(decorator: ast.expr) -> str:
    """``jit`` of ``@jit``, ``@triton.jit`` and ``@triton.jit(...)``."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _function(function: ast.FunctionDef) -> JitFunction:
    given = function.args
    if given.vararg is not None or given.kwarg is not None:
        raise KernelCodeError(f"'{function.name}' takes *args or **kwargs: name its parameters", function.lineno, 1)
    places = [*given.posonlyargs, *given.args]
    without = len(places) - len(given.defaults)
    parameters = [_parameter(one, index >= without) for index, one in enumerate(places)]
    parameters += [
        _parameter(one, default is not None) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    computed = frozenset(name for decorator in function.decorator_list for name in _heuristics(decorator))
    return JitFunction(function.name, tuple(parameters), function.lineno, computed)


def _parameter(one: ast.arg, has_default: bool) -> Parameter:
    constexpr = one.annotation is not None and "constexpr" in ast.unparse(one.annotation)
    return Parameter(one.arg, constexpr, has_default)


def _heuristics(decorator: ast.expr) -> Iterator[str]:
    if not isinstance(decorator, ast.Call) or _word(decorator) != "heuristics":
        return
    for given in (*decorator.args, *(keyword.value for keyword in decorator.keywords)):
        if isinstance(given, ast.Dict):
            yield from (key.value for key in given.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def _configurations(function: str, decorator: ast.Call, tree: ast.Module) -> Configurations:
    given = next((keyword.value for keyword in decorator.keywords if keyword.arg == "configs"), None)
    given = given if given is not None else next(iter(decorator.args), None)
    where = given if given is not None else decorator
    line, column = where.lineno, where.col_offset + 1
    try:
        values = Literals(tree, _config).value(given) if given is not None else []
    except NotLiteral as error:
        advice = "write them as literals, or write `# @tune NAME = v1, v2` lines instead of @triton.autotune"
        raise KernelCodeError(f"the configurations of '{function}' cannot be read: {error}: {advice}", line, column) from error
    if not isinstance(values, Sequence) or not values or not all(isinstance(one, dict) for one in values):
        raise KernelCodeError(f"the configurations of '{function}' are not a list of triton.Config", line, column)
    if len(values) > MAX_CONFIGURATIONS:
        raise KernelCodeError(f"'{function}' has {len(values)} configurations: {MAX_CONFIGURATIONS} at most", line, column)
    names = set(values[0])
    if uneven := next((one for one in values if set(one) != names), None):
        other = ", ".join(sorted(names ^ set(uneven)))
        raise KernelCodeError(f"the configurations of '{function}' do not all set {other}", line, column)
    unique = {tuple(one.items()): one for one in ({name: one[name] for name in values[0]} for one in values)}
    return Configurations(function, tuple(unique.values()), line, column)


def _config(call: ast.Call, literals: Literals) -> dict[str, int] | None:
    """The values of a ``triton.Config(...)`` call; ``None`` for another call."""
    if _word(call) != "Config":
        return None
    given = [literals.value(one) for one in call.args]
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    if "pre_hook" in named and not (isinstance(named["pre_hook"], ast.Constant) and named["pre_hook"].value is None):
        raise NotLiteral("a pre_hook is host code, which does not run under the plan contract")
    values = given[0] if given else literals.value(named["kwargs"]) if "kwargs" in named else {}
    positional = dict(zip(("num_warps", "num_stages", "num_ctas"), given[1:], strict=False))
    options = positional | {name: literals.value(value) for name, value in named.items() if name in OPTIONS}
    if not isinstance(values, dict):
        raise NotLiteral("a triton.Config without a dictionary of values")
    merged = {**values, **_DEFAULTS, **{name: value for name, value in options.items() if value is not None}}
    for name, value in merged.items():
        if not isinstance(name, str) or not isinstance(value, int):
            raise NotLiteral(f"{name} is {value!r}, not an integer")
    return {name: int(value) for name, value in merged.items()}
