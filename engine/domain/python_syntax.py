"""Python text as a syntax tree. Pure.

CPython before 3.11.8 and 3.12.2 counts the depth of all trees of a process in one place: two threads that parse at once end in
``SystemError: AST constructor recursion depth mismatch`` (python/cpython#106905). So one thread parses at a time.
"""

from __future__ import annotations

import ast
import threading

_ONE_AT_A_TIME = threading.Lock()


def parse(text: str, origin: str = "<unknown>") -> ast.Module:
    """The module's tree. Raises what ``ast.parse`` raises: SyntaxError, ValueError, RecursionError, MemoryError."""
    with _ONE_AT_A_TIME:
        return ast.parse(text, origin)


def parse_expression(text: str) -> ast.Expression:
    """The tree of one expression. Raises like ``parse``."""
    with _ONE_AT_A_TIME:
        return ast.parse(text, mode="eval")
