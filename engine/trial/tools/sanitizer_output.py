"""Parses reports of AddressSanitizer, UBSan and compute-sanitizer into findings, one line each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MOST = 12
"""Most findings to report."""

_OPERAND = re.compile(r"^operand (?P<name>\S+) (?P<at>0x[0-9a-f]+) (?P<size>\d+)$")
_ERROR = re.compile(r"ERROR: AddressSanitizer:? (?P<kind>[\w-]+)(?P<rest>.*)$")
_ACCESS = re.compile(r"^(?P<how>READ|WRITE) of size (?P<size>\d+) at (?P<at>0x[0-9a-f]+)")
_SIGNAL = re.compile(r"The signal is caused by a (?P<how>READ|WRITE) memory access")
_FRAME = re.compile(r"^\s+#\d+ 0x[0-9a-f]+ in (?P<function>.+?) (?P<file>[^\s:]+):(?P<line>\d+)")
_UNDEFINED = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?P<column>\d+): runtime error: (?P<what>.+)$")
_ASSERTION = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): .*Assertion '(?P<what>.+)' failed")
_MEMORY = re.compile(r"hard rss limit exhausted", re.IGNORECASE)
_KINDS = {
    "heap-buffer-overflow": "outside an allocation",
    "heap-use-after-free": "of freed memory (from an earlier call?)",
    "stack-buffer-overflow": "outside an array on the stack",
    "global-buffer-overflow": "outside a global array",
    "stack-use-after-return": "of a local variable after its function returned",
    "stack-use-after-scope": "of a local variable after its scope ended",
}


@dataclass(frozen=True, slots=True)
class _Operand:
    name: str
    start: int
    size: int

    def place(self, address: int, how: str) -> str:
        """The position of an access relative to the operand; empty if it is not near."""
        if self.start + self.size <= address < self.start + self.size + _NEAR:
            return f"{how} {address - self.start - self.size} bytes past the end of {self.name}"
        if self.start - _NEAR <= address < self.start:
            return f"{how} {self.start - address} bytes before the start of {self.name}"
        return f"{how} inside {self.name} of an earlier call" if self.start <= address < self.start + self.size else ""


_NEAR = 2048


def parse_gcc_sanitizers(output: str, source: str, label: str) -> tuple[str, ...]:
    """Findings of the address and undefined-behaviour sanitizers.

    Args:
        output: the program's whole output, with a line ``operand NAME ADDRESS SIZE`` per allocation.
        source: the file name that the compiler was given.
        label: the file name to show.
    """
    lines = output.splitlines()
    found = [*_undefined(lines, source, label), *_addresses(lines, source, label)]
    return tuple(dict.fromkeys(found))[:_MOST]


def out_of_memory(output: str) -> bool:
    """Whether the program was ended for exceeding its memory limit."""
    return _MEMORY.search(output) is not None


def _undefined(lines: Sequence[str], source: str, label: str) -> Iterator[str]:
    for line in lines:
        if match := _UNDEFINED.match(line):
            yield f"{_file(match['file'], source, label)}:{match['line']}: undefined behaviour: {_plain(match['what'])}"
        elif match := _ASSERTION.match(line):
            yield f"{_file(match['file'], source, label)}:{match['line']}: failed library assertion: {match['what']}"


def _plain(what: str) -> str:
    """``what`` without addresses, which differ from run to run."""
    return re.sub(r"\b0x[0-9a-f]{6,}", "an address", what)


def _addresses(lines: Sequence[str], source: str, label: str) -> Iterator[str]:
    operands: dict[str, _Operand] = {}
    for index, line in enumerate(lines):
        if match := _OPERAND.match(line):
            operands[match["name"]] = _Operand(match["name"], int(match["at"], 16), int(match["size"]))
        elif (match := _ERROR.search(line)) and not _is_abort(lines, match["kind"]):
            yield _describe_error(lines[index:], match["kind"], match["rest"], list(operands.values()), source, label)


def _is_abort(lines: Sequence[str], kind: str) -> bool:
    """Whether the error is the abort of a failed assertion, which is reported already."""
    return kind == "ABRT" and any(_ASSERTION.match(line) for line in lines)


def _describe_error(report: Sequence[str], kind: str, rest: str, operands: Sequence[_Operand], source: str, label: str) -> str:
    access = next((m for line in report[:4] if (m := _ACCESS.match(line))), None)
    where = _where(report, source, label)
    if access is not None:
        how = f"{access['how'].lower()} of {access['size']} bytes"
        places = (o.place(int(access["at"], 16), how) for o in operands)
        return f"{where}: {next(filter(None, places), '') or f'{how} {_KINDS.get(kind, kind)}'}"
    signal = next((m["how"].lower() for line in report[:6] if (m := _SIGNAL.search(line))), "")
    return f"{where}: {f'{signal} at an address that is not mapped' if signal else _plain(kind + rest).strip()}"


def _where(report: Sequence[str], source: str, label: str) -> str:
    """The innermost frame in the kernel's own file."""
    for line in report:
        match = _FRAME.match(line)
        if match and match["file"].rsplit("/", 1)[-1] == source:
            return f"{label}:{match['line']}"
        if not line.strip():
            break
    return label


def _file(path: str, source: str, label: str) -> str:
    name = path.rsplit("/", 1)[-1]
    return label if name == source else name


_CUDA_LINE = re.compile(r"^=+ (?P<text>.*)$")
_CUDA_START = re.compile(
    r"^(?:(?P<access>Invalid \S+ (?:read|write|atomic)) of size (?P<size>\d+) bytes"
    r"|(?P<uninitialised>Uninitialized \S+ memory read) of size (?P<bytes>\d+) bytes"
    r"|(?:Error|Warning): (?P<race>.*(?:Race|hazard).*)"
    r"|(?P<other>Program hit \S+.*|Malloc/Free error.*|Barrier error.*))$"
)  # fmt: skip
_CUDA_AT = re.compile(r"^\s+at (?P<function>[^+(]+)(?:\(.*?\))?(?:\+0x[0-9a-f]+)?(?: in (?P<file>\S+?):(?P<line>\d+))?$")


def parse_compute_sanitizer(output: str, source: str, label: str) -> tuple[str, ...]:
    """Findings of memcheck, racecheck and initcheck, each with the kernel's function or line if reported."""
    texts = [m["text"] for line in output.splitlines() if (m := _CUDA_LINE.match(line))]
    found: list[str] = []
    for index, text in enumerate(texts):
        match = _CUDA_START.match(text.strip())
        if match is None:
            continue
        what = match["access"] or match["uninitialised"]
        size = match["size"] or match["bytes"]
        what_happened = f"{what[0].lower()}{what[1:]} of {size} bytes" if what else _plain(match["race"] or match["other"])
        place = next((m for line in texts[index + 1 : index + 3] if (m := _CUDA_AT.match(line))), None)
        found.append(f"{_cuda_place(place, source, label)}: {what_happened}")
    return tuple(dict.fromkeys(found))[:_MOST]


def _cuda_place(place: re.Match[str] | None, source: str, label: str) -> str:
    if place is None:
        return label
    if place["line"]:
        return f"{_file(place['file'], source, label)}:{place['line']}"
    return f"{label}, {place['function'].strip()}"
