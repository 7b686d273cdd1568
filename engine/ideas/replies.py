"""Parses model replies into ideas and code: strict about content, lenient about what surrounds it. Pure.

Replies are untrusted text. The parsers return cleaned and bounded values, or raise ``ReplyError`` with one line that the model
can act on.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from engine.domain.errors import KernelCodeError, ProposerError
from engine.domain.model import CATEGORIES, OTHER, Contract, Dialect, IdeaText
from engine.toolchain.kernel_file import MAX_CODE_BYTES, classify
from engine.toolchain.tunables import parse_requires, parse_tunables


@dataclass(frozen=True, slots=True)
class _IdeaField:
    """One field of an idea, for the JSON schema and for the form in the prompt."""

    name: str
    description: str
    choices: tuple[str, ...] = ()
    example: float | None = None
    """For a number; other fields are strings."""

    @property
    def schema(self) -> Mapping[str, Any]:
        kind = "string" if self.example is None else "number"
        choices = {"enum": list(self.choices)} if self.choices else {}
        return {"type": kind, "description": self.description, **choices}

    @property
    def placeholder(self) -> str | float:
        if self.example is not None:
            return self.example
        return f"one of: {', '.join(self.choices)}" if self.choices else self.description


_IDEA_FIELDS = (
    _IdeaField("title", "one line: what is changed, and where"),
    _IdeaField("category", "what the change acts on", CATEGORIES),
    _IdeaField("parent", "the kernel that it builds on, e.g. k3"),
    _IdeaField("rationale", "what limits the parent now, and why this change relieves it"),
    _IdeaField("expected_effect", "what should change in the measurements if the idea works"),
    _IdeaField("predicted_speedup", "time of the parent divided by the expected time", example=1.3),
    _IdeaField("risks", "what may go wrong"),
)

IDEAS_FORM: Mapping[str, Any] = {"ideas": [{field.name: field.placeholder for field in _IDEA_FIELDS}]}
"""The expected reply with a placeholder for each value, as the prompt shows it."""

IDEAS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "ideas": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {field.name: field.schema for field in _IDEA_FIELDS},
                "required": [field.name for field in _IDEA_FIELDS],
                "additionalProperties": False,
            },
        }
    },
    "required": ["ideas"],
    "additionalProperties": False,
}
"""The JSON schema of the expected reply."""

MAX_TITLE = 120
MAX_WORDS = 2_000
MAX_REMARK = 600
MAX_REPLY = 4_000_000
"""Characters."""
_MAX_PREDICTION = 1_000.0
_MAX_IDEAS = 64
_MAX_JSON_VALUES = 200
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_BRACKET = re.compile(r"[{\[]")
_KERNEL = re.compile(r"\bk[0-9]{1,9}\b")
_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*")
_WORD = re.compile(r"[a-z]+")
_TERMS: Mapping[str, tuple[str, ...]] = {
    "memory access": (
        "coalesc",
        "cache",
        "bandwidth",
        "tiling",
        "layout",
        "locality",
        "prefetch",
        "shared mem",
        "bank",
        "traffic",
    ),
    "asynchrony and latency hiding": ("pipelin", "async", "overlap", "latency", "tma", "double buffer", "streams"),
    "precision and tensor cores": ("tensor", "mma", "bf16", "fp16", "fp8", "tf32", "quant", "mixed"),
    "instructions": ("vectori", "simd", "unroll", "fma", "intrinsic", "ilp", "arithmetic", "compute"),
    "occupancy": ("parallel", "thread", "grid", "block size", "launch", "register", "scheduling", "load balanc", "tuning"),
    "control flow": ("fus", "branch", "loop", "diverge", "algorithm", "reduction", "synchron"),
}
"""Category → parts of terms that models write instead."""
_FENCES = {
    Dialect.CUDA: frozenset({"cuda", "cu", "cpp", "c++", "cxx", "cc", "c"}),
    Dialect.CPP: frozenset({"cpp", "c++", "cxx", "cc", "c"}),
    Dialect.TRITON: frozenset({"python", "py", "python3", "triton", "gluon"}),
    Dialect.PYTHON: frozenset({"python", "py", "python3"}),
}
_C_OPENING = re.compile(
    r"#\s*(?:include|define|pragma|if|ifdef|ifndef)\b|//|/\*|(?:extern|using|namespace|template|static|constexpr|typedef)\b"
)
_PYTHON_OPENING = re.compile(r"#|(?:import|from|class)\b|@|\"\"\"|'''")
_OPENINGS = {
    Dialect.CUDA: _C_OPENING,
    Dialect.CPP: _C_OPENING,
    Dialect.TRITON: _PYTHON_OPENING,
    Dialect.PYTHON: _PYTHON_OPENING,
}
"""First line of a reply that is only code."""


class ReplyError(ProposerError):
    """An unusable reply. The message says what is wrong; people see it, and the next prompt contains it."""


@dataclass(frozen=True, slots=True)
class ReadIdea:
    """One idea of a reply, with one of the offered kernels as its parent."""

    text: IdeaText
    parent: str | None


@dataclass(frozen=True, slots=True)
class ReadCode:
    """One complete kernel of a reply."""

    text: str
    contract: Contract


def read_ideas(reply: str, offered: Sequence[str]) -> tuple[ReadIdea, ...]:
    """The ideas in a reply, in its order, without those that lack a title. An unknown category
    becomes the nearest one, or ``other``.

    Raises ReplyError when none remains.
    """
    items = _ideas_in(_bounded(reply))
    ideas: list[ReadIdea] = []
    wrong = "the list of ideas is empty"
    for item in items[:_MAX_IDEAS]:
        try:
            ideas.append(_idea(item, offered))
        except ReplyError as error:
            wrong = str(error)
    if not ideas:
        raise ReplyError(f"the reply has no usable idea: {wrong}")
    return tuple(ideas)


def read_code(reply: str, dialect: Dialect) -> ReadCode:
    """The code in a reply: its largest code fence of the dialect, or the whole reply where it is only code.

    Raises ReplyError for no code, truncated code, code that fits no contract of the dialect, or tunables that cannot be
    parsed; the last two with line and column.
    """
    text = _code_in(_bounded(reply), dialect)
    if len(text.encode("utf-8", "replace")) > MAX_CODE_BYTES:
        raise ReplyError("the code is larger than 1 MiB")
    try:
        contract = classify(text, f"the code{dialect.suffix}")[1]
        parse_tunables(text, dialect)
        parse_requires(text, dialect)
    except KernelCodeError as error:
        raise ReplyError(f"the code is not valid: {_clean(str(error), MAX_REMARK)}") from error
    return ReadCode(text, contract)


def _bounded(reply: str) -> str:
    if len(reply) > MAX_REPLY:
        raise ReplyError("the reply is longer than 4 million characters")
    return _THOUGHT.sub("", reply.removeprefix("\ufeff"), count=1)


def _ideas_in(reply: str) -> Sequence[object]:
    """The list of ideas in the first JSON value that has one; trailing commas are allowed.

    In a list that was cut off, each complete idea counts.
    """
    for text in dict.fromkeys((reply, _TRAILING_COMMA.sub("", reply))):
        single: list[object] = []
        for value in _json_values(text):
            if isinstance(value, dict) and isinstance(value.get("ideas"), list):
                return list(value["ideas"])
            if isinstance(value, dict) and "title" in value:
                single.append(value)
            if isinstance(value, list) and any(isinstance(item, dict) and "title" in item for item in value):
                return value
        if single:
            return single
    raise ReplyError('the reply has no JSON object of the form {"ideas": [...]}')


def _json_values(text: str) -> Iterator[object]:
    """The JSON objects and lists in a text, wherever they are."""
    decoder = json.JSONDecoder(strict=False)
    place = 0
    for _ in range(_MAX_JSON_VALUES):
        bracket = _BRACKET.search(text, place)
        if bracket is None:
            return
        try:
            value, place = decoder.raw_decode(text, bracket.start())
        except (ValueError, RecursionError):
            place = bracket.end()
            continue
        yield value


def _idea(item: object, offered: Sequence[str]) -> ReadIdea:
    if not isinstance(item, dict):
        raise ReplyError("an idea is not a JSON object")
    title = _clean(item.get("title"), MAX_TITLE)
    if not title:
        raise ReplyError("an idea has no title")
    text = IdeaText(
        title=title,
        category=_category(item.get("category")),
        rationale=_clean(item.get("rationale"), MAX_WORDS),
        predicted=_predicted(item.get("predicted_speedup")),
        expected=_clean(item.get("expected_effect"), MAX_REMARK),
        risks=_clean(item.get("risks"), MAX_REMARK),
    )
    return ReadIdea(text, _parent(item.get("parent"), offered))


def _clean(value: object, longest: int) -> str:
    """One line of printable text. Lists of strings are joined; any other value becomes empty."""
    if isinstance(value, list):
        value = "; ".join(item for item in value if isinstance(item, str))
    if not isinstance(value, str):
        return ""
    visible = "".join(" " if c.isspace() else c for c in value if c.isspace() or unicodedata.category(c)[0] != "C")
    words = " ".join(visible.split())
    return words if len(words) <= longest else words[: longest - 1].rstrip() + "…"


def _category(value: object) -> str:
    """The category with this exact or nearly exact name, else the one that shares the most words with the text, else the
    one that a term of the field belongs to, else ``other``."""
    given = _clean(value, MAX_REMARK).lower()
    if close := get_close_matches(given, CATEGORIES, n=1, cutoff=0.75):
        return close[0]
    words = {word.rstrip("s") for word in _WORD.findall(given)} - {"and"}
    shared = {c: len(words & {word.rstrip("s") for word in _WORD.findall(c)}) for c in CATEGORIES}
    best = max(CATEGORIES, key=lambda c: shared[c])
    if shared[best]:
        return best
    return next((category for category, signs in _TERMS.items() if any(sign in given for sign in signs)), OTHER)


def _predicted(value: object) -> float | None:
    """A plausible speedup; ``None`` for anything else."""
    if isinstance(value, str):
        value = value.strip().lower().removesuffix("x").removesuffix("×")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and 1 / _MAX_PREDICTION <= number <= _MAX_PREDICTION else None


def _parent(value: object, offered: Sequence[str]) -> str | None:
    named = _KERNEL.findall(value) if isinstance(value, str) else []
    return next((k for k in named if k in offered), offered[0] if offered else None)


@dataclass(frozen=True, slots=True)
class _Fence:
    language: str
    text: str
    closed: bool


def _code_in(reply: str, dialect: Dialect) -> str:
    lines = reply.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fences = [fence for fence in _fences(lines) if fence.text.strip()]
    named = [fence for fence in fences if fence.language in _FENCES[dialect]]
    fitting = named or [fence for fence in fences if not fence.language]
    if fitting:
        best = max(fitting, key=lambda fence: len(fence.text))
        if not best.closed:
            raise ReplyError("the code is truncated: its code fence is not closed")
        return _printable(best.text)
    if fences:
        raise ReplyError(f"the reply has no code fence in {dialect.value}, only in {_clean(fences[0].language, 40)}")
    first = next((line.strip() for line in lines if line.strip()), "")
    if not _OPENINGS[dialect].match(first):
        raise ReplyError(f"the reply has no code: give the complete file in one ```{dialect.value} fence")
    return _printable("\n".join(lines))


def _fences(lines: Sequence[str]) -> Iterator[_Fence]:
    """Markdown code fences: closed by a line of at least as many of the same marks."""
    opened: tuple[str, str] | None = None
    body: list[str] = []
    for line in lines:
        if opened is None:
            if match := _FENCE.fullmatch(line):
                opened, body = (match.group(1), match.group(2).lower()), []
        elif (bare := line.strip()).startswith(opened[0]) and not bare.strip(opened[0][0]):
            yield _Fence(opened[1], "\n".join(body), closed=True)
            opened = None
        else:
            body.append(line)
    if opened is not None:
        yield _Fence(opened[1], "\n".join(body), closed=False)


def _printable(code: str) -> str:
    kept = "".join(c for c in code if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    return kept.strip("\n") + "\n"
