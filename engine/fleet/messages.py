"""What an engine and its workers say to each other, as bytes in this project's own codec. Never a pickle.

A frame is one msgpack message. Payloads travel beside it as blobs, each once: the receiver names them by their SHA-256 itself.
What a worker says is a claim: ``decode_answer`` refuses what no honest worker sends.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from engine.domain import work as w
from engine.domain.errors import EspalierError, printable
from engine.domain.model import Blob, Contract, Device, Dialect, Interval, Signature
from engine.domain.regimes import Regime
from engine.problem.graph_ir import TracedShape
from engine.trial.assignment import Assignment
from engine.trial.kernel_builds import Binaries, BuildTarget

LONGEST_FRAME = 1 << 28
"""Most bytes of a frame."""
COMPILE = "compile"
"""What a builder does with a kernel."""
_LONGEST_LINE = 4000
_MOST_LINES = 4096
"""Most entries of a list or table in a result."""


class WorkerLied(EspalierError):
    """A worker sent what no honest worker sends; the message says what."""


class Order(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what an engine sends."""


class PutBlob(Order, frozen=True):
    """A payload that later orders name by its SHA-256."""

    content: bytes


class OpenProblem(Order, frozen=True):
    """Start the judge and load a problem. ``assignment`` names the encoded ``Assignment``. Answered by ``OpenedWorker``."""

    call: int
    assignment: Blob
    ceilings: bool


class OpenBuilder(Order, frozen=True):
    """Build kernels for the encoded ``BuildTarget`` that ``target`` names. Answered by ``OpenedBuilder``."""

    call: int
    target: Blob


class TraceProblem(Order, frozen=True):
    """Answered by the reference's graph on each workload."""

    call: int


class SentKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel as a bench needs it; its code travels as a blob."""

    id: str
    name: str
    dialect: Dialect
    contract: Contract
    source: Blob
    tunables: dict[str, int]
    binaries: Binaries = ()
    """What a builder built; empty: the worker builds it itself."""


class DoWork(Order, frozen=True):
    """One work item. ``kind`` is one of ``work.WorkKind``, or of a builder ``COMPILE``."""

    call: int
    kind: str
    kernels: tuple[SentKernel, ...] = ()
    effort: int = 0
    regime: Regime = Regime.SINGLE


class StopCall(Order, frozen=True):
    """Stop a call; it is answered by ``Refused``."""

    call: int


Calls = OpenProblem | OpenBuilder | TraceProblem | DoWork
"""Orders that are answered."""
Orders = PutBlob | OpenProblem | OpenBuilder | TraceProblem | DoWork | StopCall


class Report(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what a worker sends."""


class WorkerReady(Report, frozen=True):
    """The first report: where the worker is and what is installed there."""

    host: str
    pid: int
    versions: dict[str, str]


class CallProgress(Report, frozen=True):
    """Progress of a call."""

    call: int
    text: str


class Pulse(Report, frozen=True):
    """The worker lives; its device's clock and temperature now, where known."""

    clock_mhz: int | None = None
    celsius: int | None = None


class Answered(Report, frozen=True):
    """The result of a call. ``kind`` names its class, ``body`` is its msgpack, ``blobs`` are the payloads that it names."""

    call: int
    kind: str
    body: msgspec.Raw
    blobs: tuple[bytes, ...] = ()


class Refused(Report, frozen=True):
    """The call failed without a result. ``kind`` names the EspalierError to raise."""

    call: int
    kind: str
    reason: str


Reports = WorkerReady | CallProgress | Pulse | Answered | Refused


class OpenedWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An opened problem, as a worker describes it."""

    device: Device
    signature: Signature
    prepared: bool
    """Whether its baselines need no measurement any more."""
    target: BuildTarget
    """What kernels are built for."""


class OpenedBuilder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A builder that knows its target."""

    sees_gpus: bool
    """Whether its process has the device file of a GPU: bubblewrap cannot hide it there."""


class CompiledKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel that a builder built; its binaries travel as payloads."""

    built: w.Built
    binaries: Binaries


class TracedShapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shapes: tuple[TracedShape, ...]


_RESULTS: Mapping[str, type[Any]] = {
    one.__name__: one
    for one in (w.Prepared, w.Built, w.Verified, w.Measured, w.BackToBack, w.Suspected, w.Sanitized, w.Profiled, w.Raced,
                w.Failed, w.Impossible, OpenedWorker, OpenedBuilder, CompiledKernel, TracedShapes)
}  # fmt: skip
ANSWERS: Mapping[str, frozenset[type[Any]]] = {
    "open": frozenset({OpenedWorker}),
    "trace": frozenset({TracedShapes}),
    "open-builder": frozenset({OpenedBuilder}),
    COMPILE: frozenset({CompiledKernel, w.Failed, w.Impossible}),
    w.WorkKind.PREPARE: frozenset({w.Prepared, w.Impossible}),
    w.WorkKind.BUILD: frozenset({w.Built, w.Failed, w.Impossible}),
    w.WorkKind.VERIFY: frozenset({w.Verified, w.Suspected, w.Failed, w.Impossible}),
    w.WorkKind.MEASURE: frozenset({w.Measured, w.Suspected, w.Failed, w.Impossible}),
    w.WorkKind.SUSTAIN: frozenset({w.BackToBack, w.Failed, w.Impossible}),
    w.WorkKind.RACE: frozenset({w.Raced, w.Failed, w.Impossible}),
    w.WorkKind.SANITIZE: frozenset({w.Sanitized, w.Impossible}),
    w.WorkKind.PROFILE: frozenset({w.Profiled, w.Impossible}),
}
"""The results that each call can have."""

_orders: msgspec.msgpack.Decoder[Orders] = msgspec.msgpack.Decoder(Orders)
_reports: msgspec.msgpack.Decoder[Reports] = msgspec.msgpack.Decoder(Reports)


def encode(message: Order | Report) -> bytes:
    """A frame."""
    return msgspec.msgpack.encode(message, enc_hook=_plain_mapping)


def decode_order(frame: bytes) -> Orders:
    """What an engine sent. Raises msgspec.DecodeError."""
    return _orders.decode(frame)


def decode_report(frame: bytes) -> Reports:
    """What a worker sent. Raises WorkerLied."""
    if len(frame) > LONGEST_FRAME:
        raise WorkerLied(f"it sent {len(frame)} bytes in one message")
    try:
        return _reports.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WorkerLied(f"it sent a message that cannot be read: {one_line(str(error))}") from error


def blob_name(payload: bytes) -> Blob:
    """The name of a payload."""
    return hashlib.sha256(payload).hexdigest()


def encode_assignment(assignment: Assignment) -> bytes:
    """An assignment as a payload."""
    return msgspec.msgpack.encode(assignment, enc_hook=_plain_mapping)


def decode_assignment(payload: bytes) -> Assignment:
    """The inverse of ``encode_assignment``. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(payload, type=Assignment)


def encode_target(target: BuildTarget) -> bytes:
    """What kernels are built for, as a payload."""
    return msgspec.msgpack.encode(target, enc_hook=_plain_mapping)


def decode_target(payload: bytes) -> BuildTarget:
    """The inverse of ``encode_target``. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(payload, type=BuildTarget)


def answered(call: int, result: object, blobs: Mapping[Blob, bytes]) -> Answered:
    """The answer with a result and those of ``blobs`` that it names."""
    body = msgspec.Raw(msgspec.msgpack.encode(result, enc_hook=_plain_mapping))
    payloads = tuple(blobs[name] for name in sorted(_blobs_in(result)) if name in blobs)
    return Answered(call, type(result).__name__, body, payloads)


def decode_answer(answer: Answered, expected: frozenset[type[Any]]) -> tuple[Any, Mapping[Blob, bytes]]:
    """The result of a call and the payloads that it names. Raises WorkerLied."""
    kind = _RESULTS.get(answer.kind)
    if kind is None or kind not in expected:
        raise WorkerLied(f"it answered with {one_line(answer.kind)[:80]!r}")
    try:
        result = msgspec.msgpack.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise WorkerLied(f"its result cannot be read: {one_line(str(error))}") from error
    _check(result)
    payloads = {blob_name(payload): payload for payload in answer.blobs}
    if foreign := _blobs_in(result) - payloads.keys():
        raise WorkerLied(f"its result names a payload that it did not send: {one_line(min(foreign))[:80]}")
    return result, payloads


def one_line(text: str) -> str:
    """Text of a worker that can be shown."""
    return printable(" ".join(text[:_LONGEST_LINE].split()))


_BLOB_FIELDS = ("log", "raw", "header", "listing")


def _blobs_in(result: object) -> frozenset[Blob]:
    """The payloads that a result names, wherever in it."""
    binaries = [name for row in result.binaries for name in row if name] if isinstance(result, CompiledKernel) else []
    holders = _dataclasses(result.built if isinstance(result, CompiledKernel) else result)
    named = (value for holder in holders for name in _BLOB_FIELDS if (value := getattr(holder, name, "")) != "")
    return frozenset([*binaries, *named])


def _dataclasses(value: object) -> Iterable[Any]:
    if is_dataclass(value):
        yield value
        for one in fields(value):
            yield from _dataclasses(getattr(value, one.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _dataclasses(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _dataclasses(item)


def _check(value: object) -> None:
    """Raises WorkerLied for intervals that are none and lists that no result has."""
    if isinstance(value, CompiledKernel):
        value = value.built
    for holder in _dataclasses(value):
        for one in fields(holder):
            item = getattr(holder, one.name)
            if isinstance(item, tuple | Mapping) and len(item) > _MOST_LINES:
                raise WorkerLied(f"its result has {len(item)} {one.name}")
        if isinstance(holder, Interval) and not holder.low <= holder.value <= holder.high:
            raise WorkerLied(f"its result has the interval {holder.low} to {holder.high} around {holder.value}")
    seconds = getattr(value, "seconds", 0.0)
    if not 0.0 <= seconds < math.inf:
        raise WorkerLied(f"its work took {seconds} s")


def _plain_mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"no message holds a {type(value).__name__}")
