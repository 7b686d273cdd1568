"""One event, one JSON line, and back: versions, upcasters, strict types.

Knows how events are spelled on disk and nothing of files. The only module that sees an event as a dictionary. A line is::

    {"v":1,"seq":7,"at":"2026-11-20T13:10:00.000000Z","by":"engine","kind":"kernel.built","data":{...}}

JSON has no infinity and no NaN: such a float is written as ``{"$float":"inf"}`` (``-inf``, ``nan``), and a key that itself
begins with ``$`` gets a second one. Fields that a newer program added to a known kind are ignored; a kind that this program
does not know becomes an ``UnknownEvent`` whose data is kept as it is. Anything else that does not fit is an error.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, get_args

import msgspec

from engine.domain.errors import JournalCorrupt, JournalTooNew
from engine.domain.events import Entry, Event, UnknownEvent

VERSION = 1
"""The format that this program writes."""

Upcaster = Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]
"""(kind, data) as one version wrote them → as the next version does."""

UPCASTERS: dict[int, Upcaster] = {}
"""Version → how its events become those of the version after it. Version 1 is the first."""

_FLOAT = "$float"
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_MARK = b'"$'


class _Line(msgspec.Struct):
    v: Annotated[int, msgspec.Meta(ge=1)]
    seq: Annotated[int, msgspec.Meta(ge=0)]
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    by: str
    kind: str
    data: msgspec.Raw


class _Version(msgspec.Struct):
    v: int


_KINDS: Mapping[str, type[Event]] = {kind.KIND: kind for kind in get_args(Event) if kind is not UnknownEvent}
_TYPED = {kind: msgspec.json.Decoder(type_) for kind, type_ in _KINDS.items()}
_LINE = msgspec.json.Decoder(_Line)
_VERSION = msgspec.json.Decoder(_Version)
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


def kinds() -> tuple[str, ...]:
    """Every kind of event that this program knows by name."""
    return tuple(_KINDS)


def encode(entry: Entry) -> bytes:
    """The entry as one line, without its newline. Times are kept to the microsecond; half a surrogate pair becomes U+FFFD."""
    event = entry.event
    data: object
    if isinstance(event, UnknownEvent):
        kind, data = event.kind, dict(event.data)
    else:
        kind, data = event.KIND, _spelled(msgspec.to_builtins(event, enc_hook=_plain))
    at = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    line = {"v": VERSION, "seq": entry.seq, "at": at, "by": entry.by, "kind": kind, "data": data}
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended(line))


def decode(line: bytes, number: int = 0) -> Entry:
    """The entry that a line holds; ``number`` (from 1) names the line in errors.

    Raises JournalTooNew for a format that this program does not know, JournalCorrupt for anything that is no entry.
    """
    where = f"line {number} of the journal" if number else "a line of the journal"
    try:
        envelope = _LINE.decode(line)
        if envelope.v > VERSION:
            raise _too_new(where, envelope.v)
        return Entry(envelope.seq, envelope.at.timestamp(), envelope.by, _event(envelope, _MARK in line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        newer = _newer_version(line)
        raise _too_new(where, newer) if newer else JournalCorrupt(f"{where} cannot be read: {_why(line, error)}") from error


def is_json(line: bytes) -> bool:
    """Whether the line is whole JSON, whatever it says: a line that was cut short never is."""
    try:
        _ANYTHING.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _event(line: _Line, marked: bool) -> Event:
    """``marked``: a key of the data may begin with ``$``."""
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
        return msgspec.convert(_read_back(_OBJECT.decode(raw)), _KINDS[kind])
    return typed.decode(raw)


def _newer_version(line: bytes) -> int:
    """The version of a line whose envelope this program cannot read, if that is the reason; else 0."""
    try:
        version = _VERSION.decode(line).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return version if version > VERSION else 0


def _too_new(where: str, version: int) -> JournalTooNew:
    return JournalTooNew(
        f"{where} has format {version}, and this program reads formats up to {VERSION}: open it with a newer espalier"
    )


def _why(line: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if line.startswith(codecs.BOM_UTF8):
        return "a byte order mark of some editor stands before it; save the file without one"
    return str(error) if line.strip() else "it is blank"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"no event holds a {type(value).__name__}")


def _spelled(value: Any) -> Any:
    """Plain data with what JSON lacks spelled out."""
    if isinstance(value, dict):
        return {_escaped(key): _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    return value


def _escaped(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def _read_back(value: Any) -> Any:
    """Undoes ``_spelled``."""
    if isinstance(value, dict):
        if value.keys() == {_FLOAT} and value[_FLOAT] in _NOT_FINITE:
            return _NOT_FINITE[value[_FLOAT]]
        return {key[1:] if key.startswith("$") else key: _read_back(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_read_back(item) for item in value]
    return value


def _mended(value: Any) -> Any:
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value
