"""The normal form of kernel code: equal for two texts that differ only in comments, layout and the names of variables.

Conservative: where a text might mean something else under other names, its names are kept, so two texts count as different.
Strings, macros and directives (``@tune``, ``@launch``) always count.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Sequence
from itertools import pairwise

from engine.domain import python_syntax
from engine.domain.errors import KernelCodeError
from engine.domain.model import Contract, Dialect
from engine.toolchain.directives import WORDS, directives

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<text>R"(?P<mark>[^\s()\\]{0,16})\(.*?(?:\)(?P=mark)"|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<macro>(?<![^\n])[ \t]*\#(?:\\\r?\n|[^\n])*)
    |(?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)
    |(?P<name>[A-Za-z_$]\w*)
    |(?P<mark2><<<|>>>|<<=|>>=|<=>|\.\.\.|->\*|\#\#|::|\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=)
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_IN_MACRO = re.compile(r"//.*|/\*.*?\*/|\\\r?\n|\s+", re.DOTALL)
_TYPES = frozenset(
    "auto bool char double float int long short signed unsigned size_t ptrdiff_t half __half __half2 half2 bfloat16 "
    "__nv_bfloat16 __nv_bfloat162 float2 float3 float4 double2 int2 int3 int4 uint2 uint3 uint4 int8_t int16_t int32_t int64_t "
    "uint8_t uint16_t uint32_t uint64_t __m128 __m256 __m512 __m128i __m256i __m512i __m256d __m512d __restrict__ __restrict "
    "const".split()
)
"""Words after which a name is a variable that is being declared, if the next mark ends a declarator."""
_ENDS = frozenset("= ; , ) [ :".split())
_MEMBER = frozenset((".", "->", "::", "->*"))
_KEEPS_NAMES = frozenset(("asm", "__asm__", "__asm", "extern", "##"))
"""Where these occur, a name may mean something outside the text."""
_DOCUMENTED = ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
_EXTERN_C = 'extern "C"'


def normal_form(code: str, dialect: Dialect) -> str:
    """The code without comments and layout, its variables numbered; the code itself where it cannot be read."""
    try:
        kept = [f"@{found.word} {' '.join(found.text.split())}" for found in directives(code, dialect, *WORDS)]
        body = _python(code) if dialect.in_python else " ".join(_renamed(_tokens(code)))
    except (KernelCodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    return "\n".join((*kept, body))


def form_digest(code: str, dialect: Dialect, contract: Contract) -> str:
    """SHA-256 of the normal form with the dialect and the contract."""
    return hashlib.sha256(f"{dialect}\0{contract}\0{normal_form(code, dialect)}".encode("utf-8", "replace")).hexdigest()


def _python(code: str) -> str:
    """The module without comments, layout and docstrings; its names are kept, because callers may use them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = python_syntax.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _tokens(code: str) -> list[str]:
    """The tokens without comments and spaces; a preprocessor line is one token."""
    tokens: list[str] = []
    for match in _TOKEN.finditer(code):
        match match.lastgroup:
            case "comment" | "space":
                continue
            case "macro":
                line = match.group()
                tokens.append(line if '"' in line or "'" in line else _macro(line))
            case _:
                tokens.append(match.group())
    return tokens


def _macro(line: str) -> str:
    """A preprocessor line with single spaces, which count in it: ``#define F (x)`` is not ``#define F(x)``."""
    return f"\n#{_IN_MACRO.sub(' ', line.strip()[1:]).strip()}\n"


def _renamed(tokens: Sequence[str]) -> list[str]:
    """The tokens with the variables that the text declares numbered in the order of their first use."""
    plain = " ".join(tokens).replace(_EXTERN_C, "")
    macros = [token for token in tokens if "#" in token and len(token) > 2]
    if any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", plain) for word in _KEEPS_NAMES):
        return list(tokens)
    members = {name for before, name in pairwise(tokens) if before in _MEMBER}
    declared = {name for at, name in enumerate(tokens) if _is_declared(tokens, at)} - members
    declared -= {name for line in macros for name in re.findall(r"\w+", line)}
    numbers: dict[str, str] = {}
    return [numbers.setdefault(t, f"${len(numbers)}") if t in declared else t for t in tokens]


def _is_declared(tokens: Sequence[str], at: int) -> bool:
    """Whether the token is a name that follows a type, perhaps with stars, and ends its declarator."""
    if not (tokens[at].isidentifier() and tokens[at] not in _TYPES and at + 1 < len(tokens) and tokens[at + 1] in _ENDS):
        return False
    before = at - 1
    while before >= 0 and tokens[before] in ("*", "&"):
        before -= 1
    return before >= 0 and tokens[before] in _TYPES
