"""The instructions in the output of a disassembler, with the source line that each came from. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from engine.domain.machine_listing import ListedInstruction

_SASS_FUNCTION = re.compile(r"^\s*(?:\.text\.(?P<section>[\w$.]+):|Function : (?P<name>\S+))")
_SASS_LINE = re.compile(r'^\s*//## File "(?P<file>[^"]+)", line (?P<line>\d+)')
_SASS = re.compile(r"^\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?P<text>.*)$")
_SASS_LABEL = re.compile(r"^\s*(?P<label>\.L_x?_?\w+):")
_SASS_TARGET = re.compile(r"^(?:@!?U?P\w+ )?(?:BRA|JMP)\b.*?(?:`\((?P<label>\.L\w+)\)|\b(?P<address>0x[0-9a-f]+))$")
_NATIVE_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_NATIVE_LINE = re.compile(r"^(?P<file>/\S+|[\w.+-]+\.\w+):(?P<line>\d+)(?: \(discriminator \d+\))?$")
_NATIVE_INLINED = re.compile(r"^inlined by (?P<file>/\S+|[\w.+-]+\.\w+):(?P<line>\d+)")
_NATIVE_TARGET = re.compile(
    r"^(?:bnd |notrack )*(?:j\w+|loop\w*|b(?:\.\w+)?|cbn?z|tbn?z) +(?:[^<*]*, *)?(?:0x)?(?P<target>[0-9a-f]+) <"
)
_NATIVE = re.compile(r"^\s+(?P<at>[0-9a-f]+):\s+(?P<text>\S.*)$")
_NATIVE_COMMENT = re.compile(r"\s(?:#|//)\s")
"""Before a comment. An immediate operand of an ARM processor begins with ``#`` too, and no blank follows."""

_LONGEST = 500
"""Characters of an instruction. A kernel can give a symbol a name of megabytes."""


def parse_sass(lines: Sequence[str]) -> Iterator[ListedInstruction]:
    """The instructions of a listing of ``nvdisasm -gi`` or ``cuobjdump -sass``, without padding at a function's end.

    Of a chain of inlined calls the innermost line in the kernel's own file counts.
    """
    function, source, chain_open = "", 0, False
    held: list[ListedInstruction] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    for line in lines:
        if match := _SASS_FUNCTION.match(line):
            yield from _resolved(held, labels)
            function, source, held, labels, pending = match["section"] or match["name"], 0, [], {}, []
        elif match := _SASS_LINE.match(line):
            own = int(match["line"]) if Path(match["file"]).stem == "kernel" else 0
            source, chain_open = (source if chain_open else 0) or own, True
        elif match := _SASS_LABEL.match(line):
            pending.append(match["label"])
        elif match := _SASS.match(line):
            chain_open = False
            address = int(match["at"], 16)
            labels.update(dict.fromkeys(pending, address))
            pending = []
            text = _one_blank(match["text"].partition("/*")[0]).removesuffix(";").rstrip()
            if text not in ("", "NOP"):
                held.append(ListedInstruction(function, address, text, source))
    yield from _resolved(held, labels)


def _resolved(held: Iterable[ListedInstruction], labels: Mapping[str, int]) -> Iterator[ListedInstruction]:
    """The instructions of a function with the targets of their branches."""
    for one in held:
        match = _SASS_TARGET.match(one.text)
        if match is None:
            yield one
        else:
            yield replace(one, target=labels.get(match["label"]) if match["label"] else int(match["address"], 16))


def parse_native(lines: Sequence[str]) -> Iterator[ListedInstruction]:
    """The instructions of a listing of ``objdump -d -l --inlines``, of functions that have a line of the kernel's code.

    Code inlined from elsewhere, an intrinsic for example, counts for the line of the kernel that called it.
    """
    function, here, called, chain_open = "", 0, 0, False
    held: list[ListedInstruction] = []
    for line in [*lines, "0 <end>:"]:
        if match := _NATIVE_FUNCTION.match(line):
            if any(one.line for one in held):
                yield from held
            function, here, called, held = match["name"], 0, 0, []
        elif match := _NATIVE_LINE.match(line):
            here, called, chain_open = _own_line(match), 0, True
        elif match := _NATIVE_INLINED.match(line):
            # Without a location before it, it is another chain of calls to the same place.
            called, chain_open = (called if chain_open else 0) or _own_line(match), True
        elif match := _NATIVE.match(line):
            chain_open = False
            if not match["text"].startswith(("nop", "data16", "cs nop")):
                text = _one_blank(_NATIVE_COMMENT.split(match["text"], 1)[0])
                jump = _NATIVE_TARGET.match(text)
                target = int(jump["target"], 16) if jump else None
                held.append(ListedInstruction(function, int(match["at"], 16), text, here or called, target=target))


def _one_blank(text: str) -> str:
    """The text with one blank for each run of them, cut."""
    return " ".join(text.split())[:_LONGEST]


def _own_line(match: re.Match[str]) -> int:
    return int(match["line"]) if Path(match["file"]).name == "kernel.cpp" else 0
