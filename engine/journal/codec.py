"""Converts events to JSON lines and back: versions, upcasters, strict types.

The only module that handles events as dictionaries; it does not access files. A line is::

    {"v":1,"seq":7,"at":"2026-11-20T13:10:00.000000Z","by":"engine","kind":"kernel.built","data":{...},"session":"3fa9c1d2"}

JSON has neither infinity nor NaN: such a float is written as ``{"$float":"inf"}`` (``-inf``, ``nan``), and a key that begins
with ``$`` gets a second ``$``. Unknown fields of a known kind are ignored, an unknown kind becomes an ``UnknownEvent`` with its
data; everything else that does not match is an error.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Annotated, Any, Union, get_args

import msgspec

from engine.domain.errors import JournalCorrupt, JournalTooNew
from engine.domain.events import Entry, Event, UnknownEvent
from engine.domain.model import Author
from engine.domain.settings import CONCURRENCY, PATIENCE, PROFILING

JOURNAL = "the journal"
"""Its name in an error where the file is not known."""

VERSION = 1
"""The journal format that this program writes."""

Upcaster = Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]
"""(kind, data) of one version → of the next version."""

UPCASTERS: dict[int, Upcaster] = {}
"""Version → the upcaster to the next version. Version 1 is the first."""

_FLOAT = "$float"
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_MARK = b'"$'
_CONFLICT_MARKS = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins that stands for another one, which Git LFS has not fetched."""
_ADDED: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            "doubts",
            "bounds",
            "caveats",
            "chance",
            "servers",
            "options",
            "why",
            "features",
            "core_caches",
            "mismatches",
            "dialect",
        ),
        ([], (), {}, ""),
    ),
    **dict.fromkeys(("plan", "repeats", "advice", "into", "copies", "prior", "shown"), ([], (), "", None)),
    **dict.fromkeys(("form", "machine_code", "worker"), ("",)),
    **dict.fromkeys(("clock_mhz", "celsius"), (None,)),
    **dict.fromkeys(("estimated", "raised_later"), (False,)),
    "max_output": (0,),
    "vector_operations": (0.0,),
    "bytes_moved": (0,),
    "patience": (PATIENCE,),
    "concurrency": (CONCURRENCY,),
    "profiling": (PROFILING,),
    "attachments": ({},),
    "origin_format": (None,),
    "format_verdict": (None,),
    "suites": ({},),
    "suite": ("",),
    "by_workload": ([], ()),
    "members": ([], ()),
    "choices": ([], ()),
    "regime": ("",),
    **dict.fromkeys(("clock", "sustained", "hot"), (None,)),
    "back_to_back": (False,),
    "failed_on": (None,),
}
"""Fields that format 1 did not have at first → their values without meaning, which are not written: journals keep their
bytes."""


class _Line(msgspec.Struct):
    v: Annotated[int, msgspec.Meta(ge=1)]
    seq: Annotated[int, msgspec.Meta(ge=0)]
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    by: str
    kind: str
    data: msgspec.Raw
    session: str = ""


class _Version(msgspec.Struct):
    v: int


class _AnyLine(msgspec.Struct, tag_field="kind", gc=False):
    """The fields of a line of a known kind; ``_whole_line`` adds its data and its session."""

    v: Annotated[int, msgspec.Meta(ge=1)]
    seq: Annotated[int, msgspec.Meta(ge=0)]
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    by: str


def _whole_line(kind: str, event: type[Event]) -> type[msgspec.Struct]:
    """The line of one kind with its event, which msgspec reads in one pass."""
    own: list[tuple[str, Any] | tuple[str, Any, Any]] = [("data", event), ("session", str, "")]
    return msgspec.defstruct(f"_Line_{event.__name__}", own, bases=(_AnyLine,), tag=kind, gc=False)


_KINDS: Mapping[str, type[Event]] = {kind.KIND: kind for kind in get_args(Event) if kind is not UnknownEvent}
_TYPED = {kind: msgspec.json.Decoder(type_) for kind, type_ in _KINDS.items()}
_LINE = msgspec.json.Decoder(_Line)
_KNOWN_LINE: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    Union[tuple(_whole_line(kind, event) for kind, event in _KINDS.items())]  # noqa: UP007  # of a tuple
)
_VERSION = msgspec.json.Decoder(_Version)
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


def kinds() -> tuple[str, ...]:
    """All kinds of events that this program knows."""
    return tuple(_KINDS)


def encode(entry: Entry) -> bytes:
    """The entry as one line without newline. Times have microsecond resolution; lone surrogates become U+FFFD."""
    event = entry.event
    data: object
    if isinstance(event, UnknownEvent):
        kind, data = event.kind, dict(event.data)
    else:
        kind, data = event.KIND, _to_json(event)
    at = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    line = {"v": VERSION, "seq": entry.seq, "at": at, "by": entry.by.name, "kind": kind, "data": data}
    if entry.session:
        line["session"] = entry.session
    try:
        return msgspec.json.encode(line, enc_hook=_unknown)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_lone_surrogates(line), enc_hook=_unknown)


def decode(line: bytes, number: int = 0, name: str = JOURNAL) -> Entry:
    """The entry on a line; ``number`` (from 1) is the line number in errors, ``name`` the journal's.

    Raises JournalTooNew for a newer format, JournalCorrupt for everything else that is not an entry.
    """
    if _MARK not in line and _is_utf8(line):
        try:
            known = _KNOWN_LINE.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # an unknown kind, another version or damage: found out below
        else:
            if known.v == VERSION:
                return Entry(known.seq, known.at.timestamp(), _author(known.by), known.data, known.session)
    return _decode_in_steps(line, number, name)


def _decode_in_steps(line: bytes, number: int, name: str) -> Entry:
    """``decode`` for every line that is not simply one of a known kind and of this version."""
    try:
        if not _is_utf8(line):
            raise UnicodeError
        envelope = _LINE.decode(line)
        if envelope.v > VERSION:
            raise _too_new(_place(number, name), envelope.v)
        event = _event(envelope, _MARK in line)
        return Entry(envelope.seq, envelope.at.timestamp(), _author(envelope.by), event, envelope.session)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        newer = _newer_version(line)
        raise (
            _too_new(_place(number, name), newer)
            if newer
            else damaged(f"cannot be read ({_decode_reason(line, error)})", number, name)
        ) from error


def damaged(what: str, number: int, name: str = JOURNAL) -> JournalCorrupt:
    """The error for a line that does not belong where it is, with advice; ``what`` follows the line's place."""
    before = "line" if number == 2 else f"{number - 1} lines"
    rescue = f", or keep its first {before} and continue from there" if number > 1 else ""
    return JournalCorrupt(f"{_place(number, name)} {what}: restore the file from a copy{rescue}")


def number_text(number: int) -> str:
    """The number; of one with more digits than any journal's, the first few and how many there are."""
    digits = str(number)
    return digits if len(digits) <= _MOST_DIGITS else f"{digits[:_MOST_DIGITS]}… ({len(digits)} digits)"


_MOST_DIGITS = 20
_author = lru_cache(maxsize=256)(Author)


def _place(number: int, name: str) -> str:
    return f"line {number} of {name}" if number else f"a line of {name}"


CUT_SHORT = "was cut short"


def json_fault(line: bytes) -> str:
    """What keeps the line from being read as JSON, as a predicate; empty if nothing does. A truncated line was cut short."""
    if not line.strip():
        return "is blank"
    try:
        _ANYTHING.decode(line)
    except RecursionError:
        return "is nested too deeply"
    except UnicodeDecodeError:
        return "is not UTF-8"
    except msgspec.DecodeError as error:
        ends = ("truncated", f"(byte {len(line)})")  # a number that ends with its point is malformed after the last byte
        return CUT_SHORT if str(error).endswith(ends) else "is not JSON"
    return ""


def _event(line: _Line, marked: bool) -> Event:
    """``marked``: keys of the data may begin with ``$``."""
    raw: bytes | msgspec.Raw = line.data
    kind = line.kind
    if line.v < VERSION:
        data = _OBJECT.decode(raw)
        for version in range(line.v, VERSION):
            kind, data = UPCASTERS[version](kind, data)
        raw = msgspec.json.encode(data)
    typed = _TYPED.get(kind)
    if typed is None:
        return UnknownEvent(kind, _OBJECT.decode(raw))
    if marked:
        return msgspec.convert(_from_json(_OBJECT.decode(raw)), _KINDS[kind])
    return typed.decode(raw)


def _newer_version(line: bytes) -> int:
    """The version of an unreadable line if it is newer than this program's, else 0."""
    try:
        version = _VERSION.decode(line).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return version if version > VERSION else 0


def _too_new(where: str, version: int) -> JournalTooNew:
    return JournalTooNew(
        f"{where} has format {number_text(version)}; this program reads formats up to {VERSION}: use a newer espalier"
    )


def _decode_reason(line: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if line.startswith(codecs.BOM_UTF8):
        return "it begins with a byte order mark"
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it is UTF-16 text, not UTF-8"
    if line.startswith(_CONFLICT_MARKS):
        return "it is the mark of a merge conflict"
    if line.startswith(LFS_POINTER):
        return "it is a Git LFS pointer, and `git lfs pull` fetches the file"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return str(error) if line.strip() else "it is blank"


def _is_utf8(line: bytes) -> bool:
    """Whether all of the line is text: msgspec does not look into fields that it skips, such as one whose name is damaged."""
    if line.isascii():
        return True
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unknown(value: object) -> object:
    raise NotImplementedError(f"no event holds a {type(value).__name__}")


def _to_json(value: Any) -> Any:
    """The value with non-finite floats written as objects, without added fields that are empty."""
    if is_dataclass(value) and not isinstance(value, type):
        found = ((name, getattr(value, name), left_out) for name, left_out in _fields_of(type(value)))
        return {name: _to_json(item) for name, item, left_out in found if not any(_is_same(item, one) for one in left_out)}
    if isinstance(value, Mapping):
        return {_escaped_key(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    return value


@cache
def _fields_of(type_: type) -> tuple[tuple[str, tuple[object, ...]], ...]:
    """Name of each field, and its values that are not written."""
    return tuple((one.name, _not_written(one)) for one in fields(type_))


def _not_written(field: Field[Any]) -> tuple[object, ...]:
    """The values of an added field that are not written: those that reading a line without it gives."""
    if field.default is MISSING and field.default_factory is MISSING:
        return ()
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return tuple(one for one in _ADDED.get(field.name, ()) if _is_same(default, one))


def _is_same(item: object, other: object) -> bool:
    if isinstance(other, dict):
        return isinstance(item, Mapping) and not item
    return type(item) is type(other) and item == other and (not isinstance(item, float) or str(item) == str(other))


def _escaped_key(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def _from_json(value: Any) -> Any:
    """The inverse of ``_to_json``."""
    if isinstance(value, dict):
        if value.keys() == {_FLOAT} and value[_FLOAT] in _NOT_FINITE:
            return _NOT_FINITE[value[_FLOAT]]
        return {key[1:] if key.startswith("$") else key: _from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return value


def _without_lone_surrogates(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_lone_surrogates(key): _without_lone_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_lone_surrogates(item) for item in value]
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value
