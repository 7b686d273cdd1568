"""The inbox of a session: where other processes leave commands for the process that holds the session.

One file for each command, written aside and renamed in, named so that sorting by name is the order of asking. The holder claims
a file by renaming it, and the asker withdraws it in the same way, so exactly one of them has it. A file's owner is a fact of
the file system; the author written in it is a claim.

    {"v":1,"by":"engineer","process":4711,"command":"PinKernel","data":{"kernel":"k3"},"payloads":{SHA-256: base64}}
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgspec

from engine.domain import commands as c
from engine.domain.errors import CommandRejected, JournalUnwritable
from engine.domain.model import Author, Blob

FOLDER = "inbox"
VERSION = 1
LARGEST = 48 << 20
"""Bytes of a request: a reply pasted by hand has at most 16 MiB, a third more as base64."""
MOST_WAITING = 4096
"""Requests that may wait; further ones are refused."""
_SUFFIX = ".json"
_CLAIMED = ".taken"
_UNREADABLE = ".unreadable"
_NAME = re.compile(r"([0-9]{20}-[0-9]{1,10}-[0-9a-f]{8})\.(?:json|taken)")
_COMMANDS: Mapping[str, type[c.Command]] = {one.__name__: one for one in get_args(c.Command)}
_last_time = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A claimed command. ``command`` is ``None`` if it cannot be read; ``problem`` says why."""

    id: str
    by: str = ""
    uid: int = -1
    """Owner of the file."""
    process: int = 0
    name: str = ""
    command: c.Command | None = None
    payloads: Mapping[Blob, bytes] = field(default_factory=dict)
    problem: str = ""


def put(folder: Path, command: c.Command, by: Author, payloads: Mapping[Blob, bytes]) -> str:
    """Leave a command in a session's inbox; the request's name.

    Raises CommandRejected if too many commands wait or it is too large, JournalUnwritable if it cannot be written.
    """
    text = _encoded(command, by, payloads)
    if len(text) > LARGEST:
        raise CommandRejected(f"the command has {len(text)} bytes, more than {LARGEST}: it was not sent")
    place = folder / FOLDER
    name = _new_name()
    aside = place / f".{name}"
    try:
        place.mkdir(exist_ok=True)
        if sum(1 for _ in _names(place)) >= MOST_WAITING:
            raise CommandRejected(f"{MOST_WAITING} commands wait in {place}: try again once they have been answered")
        with open(aside, "xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(aside, place / f"{name}{_SUFFIX}")
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        reason = f"{error.strerror}: nothing was changed; free some space, or ask its owner for permission"
        raise JournalUnwritable(f"the inbox {place} cannot be written ({reason})") from error
    return name


def withdraw(folder: Path, request: str) -> bool:
    """Take a command back; ``False`` if it was already claimed or answered."""
    try:
        (folder / FOLDER / f"{request}{_SUFFIX}").unlink()
    except OSError:
        return False
    return True


def waiting(folder: Path) -> list[str]:
    """The names of the waiting requests in order; those that an earlier holder claimed and did not finish come first."""
    return sorted(set(_names(folder / FOLDER)))


def claim(folder: Path, request: str) -> Request | None:
    """Claim a request; ``None`` if it is gone.

    Raises JournalUnwritable if it cannot be claimed, as in an inbox that another user made.
    """
    place = folder / FOLDER
    taken = place / f"{request}{_CLAIMED}"
    try:
        with suppress(FileNotFoundError):  # an earlier holder claimed it
            os.rename(place / f"{request}{_SUFFIX}", taken)
    except OSError as error:
        raise JournalUnwritable(
            f"commands in {place} cannot be read ({error.strerror}): make the folder writable for yourself"
        ) from error
    try:
        handle = os.open(taken, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Request(request, problem=f"cannot be read ({error.strerror})")
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        return Request(request, problem="is not a file")
    with open(handle, "rb") as file:
        if about.st_size > LARGEST:
            return Request(request, uid=about.st_uid, problem=f"has more than {LARGEST} bytes")
        try:
            text = file.read(LARGEST + 1)
        except OSError as error:
            return Request(request, uid=about.st_uid, problem=f"cannot be read ({error.strerror})")
    return _decoded(request, text, about.st_uid)


def unclaim(folder: Path, request: str) -> None:
    """Put a claimed request back: it could not be answered now."""
    place = folder / FOLDER
    with suppress(OSError):
        os.rename(place / f"{request}{_CLAIMED}", place / f"{request}{_SUFFIX}")


def finish(folder: Path, request: Request) -> None:
    """Remove an answered request; one that cannot be read is kept for a person to look at."""
    taken = folder / FOLDER / f"{request.id}{_CLAIMED}"
    with suppress(OSError):
        if request.command is None:
            os.rename(taken, taken.with_suffix(_UNREADABLE))
        else:
            taken.unlink()


def _names(place: Path) -> Iterator[str]:
    try:
        if place.is_symlink():
            return
        with os.scandir(place) as files:
            yield from (match[1] for file in files if (match := _NAME.fullmatch(file.name)))
    except OSError:
        return


def _new_name() -> str:
    """Later names of one process are greater, whatever the clock does."""
    global _last_time
    _last_time = max(time.time_ns(), _last_time + 1)
    return f"{_last_time:020d}-{os.getpid()}-{secrets.token_hex(4)}"


def _encoded(command: c.Command, by: Author, payloads: Mapping[Blob, bytes]) -> bytes:
    data = msgspec.to_builtins(command, enc_hook=dict)
    sent = {name: base64.b64encode(payload).decode() for name, payload in payloads.items()}
    request = {"v": VERSION, "by": by.name, "process": os.getpid(), "command": type(command).__name__, "data": data}
    try:
        text = json.dumps({**request, "payloads": sent}, allow_nan=False)
    except ValueError:
        raise CommandRejected(f"{type(command).__name__} has a number that is not finite") from None
    return text.encode("utf-8", "replace")


def _decoded(request: str, text: bytes, uid: int) -> Request:
    """A claimed file as a command. What a newer program adds is refused, never ignored: it could be a condition."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Request(request, uid=uid, problem="is incomplete or not JSON")
    if not isinstance(found, dict):
        return Request(request, uid=uid, problem="is not an object")
    by, name, process = (found.get(key) for key in ("by", "command", "process"))
    base = Request(
        request, by if isinstance(by, str) else "", uid, process if isinstance(process, int) else 0,
        name[:80] if isinstance(name, str) else "",
    )  # fmt: skip
    version = found.get("v")
    if not isinstance(version, int) or version > VERSION:
        return _refused(base, _NEWER.format("has a newer format"))
    kind = _COMMANDS.get(base.name)
    if kind is None:
        return _refused(base, _NEWER.format(f"asks for {base.name!r}, which is unknown here"))
    data = found.get("data")
    try:
        command: Any = msgspec.convert(data, kind)
        unknown = sorted(_unknown_fields(data, msgspec.to_builtins(command, enc_hook=dict)))
        if unknown:
            return _refused(base, _NEWER.format(f"has unknown fields ({', '.join(unknown)[:120]})"))
        payloads = _payloads(found.get("payloads", {}))
    except (msgspec.ValidationError, RecursionError, ValueError) as error:
        return _refused(base, f"is not a valid {base.name}: {' '.join(str(error).split())[:200]}")
    return Request(base.id, base.by, uid, base.process, base.name, command, payloads)


def _unknown_fields(data: object, known: object) -> Iterator[str]:
    """Names in ``data`` that were lost when it was converted."""
    if isinstance(data, dict) and isinstance(known, dict):
        for name, value in data.items():
            if name in known:
                yield from _unknown_fields(value, known[name])
            else:
                yield repr(name)


_NEWER = "{}: use the same version of espalier in both processes"


def _refused(base: Request, problem: str) -> Request:
    return Request(base.id, base.by, base.uid, base.process, base.name, problem=problem)


def _payloads(found: object) -> dict[Blob, bytes]:
    """Raises ValueError for payloads that are not base64 or do not match their names."""
    if not isinstance(found, dict):
        raise ValueError("payloads is not an object")
    payloads: dict[Blob, bytes] = {}
    for name, text in found.items():
        try:
            payload = base64.b64decode(text, validate=True)
        except (TypeError, binascii.Error):
            raise ValueError("a payload is not base64") from None
        if hashlib.sha256(payload).hexdigest() != name:
            raise ValueError("a payload does not match its name")
        payloads[name] = payload
    return payloads
