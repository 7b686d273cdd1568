"""Encoding of events: every kind round-trips, floats that JSON lacks, newer and older formats, invalid lines."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b

from engine.domain import events as e
from engine.domain.errors import JournalCorrupt, JournalTooNew
from engine.domain.model import ENGINE, ENGINEER, Author, Interval
from engine.domain.settings import CallOptions, Limits, Settings
from engine.journal import codec

KNOWN = tuple(kind for kind in get_args(e.Event) if kind is not e.UnknownEvent)


def entry(event: e.Event, seq: int = 0, at: float = b.START, by: Author = ENGINE) -> e.Entry:
    return e.Entry(seq, at, by, event)


def plain(value: Any) -> Any:
    """A value as comparable data: floats by their digits (NaN is unequal to itself), all mappings as dictionaries."""
    if is_dataclass(value):
        return type(value), {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return (type(value), repr(value))


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.KIND)
def test_every_event_is_read_back_as_it_was_written(kind: type) -> None:
    @given(st.from_type(kind), st.integers(0, 10**9), st.sampled_from([ENGINE, ENGINEER]))
    def there_and_back(event: e.Event, seq: int, by: Author) -> None:
        line = codec.encode(entry(event, seq, by=by))
        assert b"\n" not in line
        assert plain(codec.decode(line)) == plain(entry(event, seq, by=by))

    there_and_back()


def test_what_an_added_field_has_where_nothing_is_said_is_left_out_of_that_field_only() -> None:
    """Format 1 got fields later. Their names may be keys of a mapping or fields of another type: there the value counts."""
    options = {"": CallOptions(max_output=0)}
    event = replace(b.opened(), settings=replace(Settings(), options=options), versions={"suite": "", "regime": ""})
    line = codec.encode(entry(event))
    assert b'"suites"' not in line
    read = codec.decode(line).event
    assert isinstance(read, e.SessionOpened)
    assert (read.settings.options, read.versions) == (options, event.versions)


def test_every_kind_has_its_own_name_on_disk() -> None:
    assert len({kind.KIND for kind in KNOWN}) == len(KNOWN)
    assert set(codec.kinds()) == {kind.KIND for kind in KNOWN}


def test_a_line_has_the_documented_format() -> None:
    line = codec.encode(entry(e.KernelPinned("k3"), seq=7, at=1_795_000_000.25, by=ENGINEER))
    assert line == (
        b'{"v":1,"seq":7,"at":"2026-11-18T11:06:40.250000Z","by":"engineer","kind":"kernel.pinned","data":{"kernel":"k3"}}'
    )


@given(st.floats(0, 4e9))
def test_times_have_microsecond_resolution_and_do_not_drift(at: float) -> None:
    once = codec.decode(codec.encode(entry(e.SessionReopened(), at=at)))
    assert abs(once.at - at) <= 1e-6
    assert codec.decode(codec.encode(once)) == once


def test_times_from_another_zone_are_the_same_instant() -> None:
    line = codec.encode(entry(e.SessionReopened())).replace(b"11:06:40.000000Z", b"12:06:40+01:00")
    assert codec.decode(line).at == b.START


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 0.1])
def test_every_float_survives(value: float) -> None:
    measurement = replace(b.measurement(), time_us=Interval(value, value, value), speedup={"eager": Interval(1.0, 0.0, value)})
    read = codec.decode(codec.encode(entry(e.KernelMeasured("k1", measurement, value)))).event
    assert isinstance(read, e.KernelMeasured)
    for found in (read.seconds, read.measurement.time_us.low, read.measurement.speedup["eager"].high):
        assert isinstance(found, float)
        assert repr(found) == repr(value)


@given(st.dictionaries(st.sampled_from(["$float", "$$float", "$", "a", "inf"]), st.sampled_from(["inf", "nan", "$float", ""])))
def test_strings_that_look_like_encoded_floats_stay_strings(versions: dict[str, str]) -> None:
    event = replace(b.opened(), versions=versions)
    assert codec.decode(codec.encode(entry(event))).event == event


def test_integers_stay_exact() -> None:
    workload = replace(b.problem().workloads[0], settings={"a": 2**80, "b": 3, "c": 3.0})
    event = replace(b.opened(), problem=replace(b.problem(), workloads=(workload,)))
    read = codec.decode(codec.encode(entry(event))).event
    assert isinstance(read, e.SessionOpened)
    kept = read.problem.workloads[0].settings
    assert [(type(v), v) for v in kept.values()] == [(int, 2**80), (int, 3), (float, 3.0)]


def test_immutable_tunables_are_encoded() -> None:
    event = b.drafted(tunables=MappingProxyType({"BLOCK": 256, "UNROLL": 4}))
    assert codec.decode(codec.encode(entry(event))).event == event


def test_a_lone_surrogate_does_not_stop_a_session() -> None:
    read = codec.decode(codec.encode(entry(e.NoteAdded("", "a \udc80 b \ud83d\ude00 c")))).event
    assert read == e.NoteAdded("", "a \ufffd b \U0001f600 c")


def test_an_unknown_kind_is_kept_and_written_again_byte_for_byte() -> None:
    line = (
        b'{"v":1,"seq":3,"at":"2026-11-18T11:06:40.000000Z","by":"engine","kind":"llm.called",'
        b'"data":{"tokens":12,"usd":0.25,"who":{"name":"x"},"odd":{"$float":"inf"},"list":[1,2.0,null,true]}}'
    )
    read = codec.decode(line)
    assert isinstance(read.event, e.UnknownEvent)
    assert read.event.kind == "llm.called"
    assert codec.encode(read) == line


@given(st.dictionaries(st.text(string.ascii_lowercase, min_size=1), st.integers() | st.text(string.printable) | st.none()))
def test_fields_that_a_newer_program_added_are_ignored(extra: dict[str, object]) -> None:
    plain = json.loads(codec.encode(entry(b.drafted())))
    known = {one.name for one in fields(e.KernelDrafted)}
    plain["data"] |= {key: value for key, value in extra.items() if key not in known}
    plain |= {key: value for key, value in extra.items() if key not in plain}
    assert codec.decode(json.dumps(plain).encode()) == entry(b.drafted())


def test_fields_with_a_default_may_be_absent() -> None:
    plain = json.loads(codec.encode(entry(b.opened(mode="ask"))))
    plain["data"]["settings"] = {"limits": {}}
    read = codec.decode(json.dumps(plain).encode()).event
    assert isinstance(read, e.SessionOpened)
    assert read.settings == Settings(limits=Limits())


_GOOD = json.loads(codec.encode(entry(b.measured(), seq=4)))


def _with(**changes: object) -> bytes:
    return json.dumps(_GOOD | changes).encode()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "it is blank"),
        (b"   ", "it is blank"),
        (b"{", "truncated"),
        (b"null", "object"),
        (b"[]", "object"),
        (b"\x00\x00\x00", "malformed"),
        (b"{}", "missing required field"),
        (b"\xff", "it is not UTF-8"),
        (_with().decode().encode("utf-16"), "UTF-16"),
        (b"<<<<<<< HEAD", "mark of a merge conflict"),
        (b">>>>>>> other\r", "mark of a merge conflict"),
        (b"version https://git-lfs.github.com/spec/v1", "`git lfs pull` fetches the file"),
        (b"[" * 100_000, "object"),
        (_with(seq=-1), "seq"),
        (_with(seq="4"), "seq"),
        (_with(seq=None), "seq"),
        (_with(v=0), "v"),
        (_with(v="1"), "v"),
        (_with(at="yesterday"), "at"),
        (_with(at="2026-11-18T11:06:40"), "at"),
        (_with(at=5), "at"),
        (_with(by=None), "by"),
        (_with(kind=3), "kind"),
        (b"\xef\xbb\xbf" + _with(), "byte order mark"),
        (_with(data=_GOOD["data"] | {"key": 1}).replace(b'"key"', b'"k\xff\xfey"'), "it is not UTF-8"),
        (_with(data=_GOOD["data"] | {"kernel": "k1\xe9"}).replace(b"\\u00e9", b"\xe9"), "it is not UTF-8"),
        (_with(data=None), "object"),
        (_with(data=[]), "object"),
        (_with(data={}), "kernel"),
        (_with(data=_GOOD["data"] | {"kernel": 3}), "kernel"),
        (_with(data=_GOOD["data"] | {"seconds": "0.5"}), "seconds"),
        (_with(data=_GOOD["data"] | {"seconds": None}), "seconds"),
        (_with(data=_GOOD["data"] | {"seconds": {"$float": "many"}}), "seconds"),
        (_with(data=_GOOD["data"] | {"measurement": {"depth": "screen"}}), "measurement"),
        (_with(kind="kernel.failed", data={"kernel": "k1", "failure": {"kind": "sulked", "reason": ""}}), "sulked"),
        (_with(kind="llm.called", data=7), "object"),
        pytest.param(
            _with(kind="llm.called", data={"deep": 0}).replace(b"0}}", b"[" * 500_000 + b"]" * 500_000 + b"}}"),
            "deep",
            id="deep",
        ),
    ],
)
def test_an_invalid_line_is_named(line: bytes, words: str) -> None:
    with pytest.raises(JournalCorrupt, match=r"line 12 of the journal cannot be read \(.") as caught:
        codec.decode(line, 12)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "words"), [(1, "from a copy"), (2, "its first line and continue"), (3, "its first 2 lines and")]
)
def test_advice_on_a_damaged_line_counts_the_lines_before_it(number: int, words: str) -> None:
    with pytest.raises(JournalCorrupt, match=words):
        codec.decode(b"{", number)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_journal_errors(line: bytes) -> None:
    with pytest.raises((JournalCorrupt, JournalTooNew)):
        codec.decode(line)


@given(st.integers(0, len(codec.encode(entry(b.measured()))) - 1), st.binary(min_size=1, max_size=3))
def test_damage_anywhere_is_detected_or_harmless(place: int, bytes_: bytes) -> None:
    line = bytearray(codec.encode(entry(b.measured())))
    line[place : place + len(bytes_)] = bytes_
    try:
        codec.encode(codec.decode(bytes(line)))
    except (JournalCorrupt, JournalTooNew):
        return


@pytest.mark.parametrize("line", [_with(v=2), _with(v=99, seq="4"), b'{"v":2}', b'{"v":2,"at":5,"changed":{}}'])
def test_a_newer_format_is_reported(line: bytes) -> None:
    with pytest.raises(JournalTooNew, match=r"line 1 of the journal has format \d+; .* newer espalier"):
        codec.decode(line, 1)


def test_an_older_format_is_upcast_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(kind: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return ("note.written" if kind == "note.added" else kind), data

    def split(kind: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return ("note.added", {"target": "k1", "text": data["text"].upper()}) if kind == "note.written" else (kind, data)

    written = codec.encode(entry(e.NoteAdded("", "old words"), seq=5))
    monkeypatch.setattr(codec, "VERSION", 3)
    monkeypatch.setattr(codec, "UPCASTERS", {1: renamed, 2: split})
    assert codec.decode(written).event == e.NoteAdded("k1", "OLD WORDS")


def test_every_released_format_can_be_read() -> None:
    assert set(codec.UPCASTERS) == set(range(1, codec.VERSION))


def test_an_unsupported_value_is_rejected() -> None:
    with pytest.raises(NotImplementedError, match="no event holds a object"):
        codec.encode(entry(e.NoteAdded("", object())))  # type: ignore[arg-type]


def test_only_truncated_json_is_invalid() -> None:
    line = codec.encode(entry(b.prepared()))
    assert not codec.json_fault(line)
    assert {codec.json_fault(line[:cut]) for cut in range(1, len(line))} == {codec.CUT_SHORT}
    assert msgspec.json.decode(line)["kind"] == "session.prepared"
