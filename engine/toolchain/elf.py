"""The symbols that a shared object imports, from its dynamic symbol table.

Reads what the loader reads (the dynamic segment, no section headers), for 64-bit little-endian objects.
"""

from __future__ import annotations

import struct
from pathlib import Path

_IDENTITY = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<32xQ14xHH")
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")
_ENTRY = struct.Struct("<QQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOAD, _DYNAMIC = 1, 2
_HASH, _STRINGS, _SYMBOLS, _STRINGS_SIZE, _GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
_UNDEFINED = 0
_THREAD_STARTS = frozenset({"pthread_create", "thrd_create"})
_STD_THREAD = "_ZNSt6thread"
"""Prefix of the symbols of ``std::thread``, which ``std::async`` uses too. OpenMP starts its threads in its own library."""


def starts_threads(binary: Path) -> bool:
    """Whether a shared object imports functions that start threads; false for any other file."""
    try:
        imported = imported_symbols(binary.read_bytes())
    except ValueError:
        return False
    return bool(imported & _THREAD_STARTS) or any(name.startswith(_STD_THREAD) for name in imported)


def imported_symbols(image: bytes) -> frozenset[str]:
    """The undefined symbols of a shared object. Raises ValueError for any other or a truncated file."""
    if not image.startswith(_IDENTITY):
        raise ValueError("not a 64-bit little-endian ELF object")
    try:
        return _undefined(image)
    except (struct.error, KeyError) as error:
        raise ValueError(f"a damaged ELF object: {error}") from error


def _undefined(image: bytes) -> frozenset[str]:
    table, size, count = _HEADER.unpack_from(image)
    segments = [_SEGMENT.unpack_from(image, table + i * size) for i in range(count)]
    loaded = [segment[1:] for segment in segments if segment[0] == _LOAD]

    def offset(address: int) -> int:
        for start, virtual, length in loaded:
            if virtual <= address < virtual + length:
                return int(start + address - virtual)
        raise ValueError(f"a damaged ELF object: address {address:#x} is in no segment")

    entries: dict[int, int] = {}
    for kind, start, _, length in segments:
        if kind == _DYNAMIC:
            entries.update(
                _ENTRY.unpack_from(image, at) for at in range(start, start + length - length % _ENTRY.size, _ENTRY.size)
            )
    symbols, strings = offset(entries[_SYMBOLS]), offset(entries[_STRINGS])
    names = image[strings : strings + entries[_STRINGS_SIZE]]
    # The GNU hash table gives the first defined symbol; the older table gives the number of all symbols.
    (known,) = struct.unpack_from("<4xI", image, offset(entries[_GNU_HASH if _GNU_HASH in entries else _HASH]))
    found = set()
    for index in range(known):
        name, _, _, section, _, _ = _SYMBOL.unpack_from(image, symbols + index * _SYMBOL.size)
        if section == _UNDEFINED and name < len(names):
            found.add(names[name : names.find(b"\0", name)].decode("ascii", "replace"))
    return frozenset(found - {""})
