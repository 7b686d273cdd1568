"""The channel between judge, host and runner: whole messages or a named error, and no leaked descriptor."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.trial import messages
from engine.trial.messages import (
    ArenaHandle,
    Channel,
    ChannelClosed,
    ChannelGarbled,
    ChannelTimeout,
    ClaimedTimes,
    Fault,
    LoadKernel,
    Message,
    RunKernel,
    RunnerReady,
    RunnerReply,
    RunnerRequest,
    Slot,
)

MESSAGES: list[Message] = [
    RunKernel(3),
    ClaimedTimes(1.5, 2.5, 0.0, 12.5, True),
    RunnerReady(0.25),
    Fault("crashed", "naïve ☠ text\nof two lines"),
    LoadKernel(
        contract="host", device="cpu", slots=((Slot("x", "input", (2, 3), "float32", 4096, 24),),),
        inputs=ArenaHandle("memfd", 8192, False), outputs=ArenaHandle("memfd", 8192, True), threads=2,
        scalars=([1, "two", None], {"k": 0.5}, [["tensor"]]), tunables={"N": 4}, plan=b"\x00\xff",
    ),
]  # fmt: skip


class Collector:
    """Stand-in for a socket that records what is sent."""

    def __init__(self) -> None:
        self.data = b""

    def settimeout(self, _: float | None) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.data += data


def encoded(*messages: Message) -> bytes:
    collector = Collector()
    for message in messages:
        Channel(collector).send(message)  # type: ignore[arg-type]
    return collector.data


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    channel, other = Channel.pair()
    yield channel, other
    channel.close()
    other.close()


@given(st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4), st.data())
def test_fragmented_messages_arrive_whole(messages: list[Message], data: st.DataObject) -> None:
    stream = encoded(*messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    channel, other = Channel.pair()
    with other:
        writer = threading.Thread(
            target=lambda: [other.sendall(stream[a:b]) for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        )
        writer.start()
        found = [channel.receive(RunnerReply | RunnerRequest, 5)[0] for _ in messages]
        writer.join()
    channel.close()
    assert found == messages


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (struct.pack("<I", 5) + b"hello", "no msgpack of ours"),
        (struct.pack("<I", 0), "an empty body"),
        (b"\xff\xff\xff\xff" + b"x", "four gigabytes announced"),
        (encoded(RunKernel(1)), "a message of the other direction"),
        (encoded(Fault("crashed", "x"))[:-1] + b"\xff", "text that is no UTF-8"),
        (struct.pack("<I", 200_007) + b"\x82\xa4type\xa5Ready" + b"\x91" * 199_995, "a hundred thousand lists in each other"),
    ],
)
def test_an_invalid_message_is_garbled(ends: tuple[Channel, socket.socket], sent: bytes, why: str) -> None:
    channel, other = ends
    with other:
        other.sendall(sent)
        with pytest.raises(ChannelGarbled):
            channel.receive(RunnerReply, 5)


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_arrive_or_raise_a_named_error(noise: bytes) -> None:
    channel, other = Channel.pair()
    with other:
        other.sendall(noise)
        other.shutdown(socket.SHUT_WR)
        with pytest.raises((ChannelGarbled, ChannelClosed)):
            _drain(channel)
    channel.close()


def test_descriptors_of_garbled_messages_are_closed(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    with other:
        reading, writing = os.pipe()
        socket.send_fds(other, [struct.pack("<I", 1) + b"\xc1"], [writing])
        os.close(writing)
        with pytest.raises(ChannelGarbled):
            channel.receive(RunnerReply, 5)
    channel.close()
    assert os.read(reading, 1) == b""
    os.close(reading)


def _drain(channel: Channel) -> None:
    for _ in range(100):
        channel.receive(RunnerReply, 5)


def test_a_truncated_message_is_a_closed_channel(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.sendall(encoded(RunnerReady(1.0))[:-3])
    other.close()
    with pytest.raises(ChannelClosed):
        channel.receive(RunnerReply, 5)
    with pytest.raises(ChannelClosed):
        channel.send(RunKernel(1))


@pytest.mark.parametrize("sent", [b"", encoded(RunnerReady(1.0))[:1], encoded(RunnerReady(1.0))[:-1]])
def test_the_deadline_covers_the_whole_message(ends: tuple[Channel, socket.socket], sent: bytes) -> None:
    channel, other = ends
    with other:
        other.sendall(sent)
        with pytest.raises(ChannelTimeout):
            channel.receive(RunnerReply, 0.02)
        other.sendall(encoded(RunnerReady(1.0))[len(sent) :])
        assert channel.receive(RunnerReply, 5)[0] == RunnerReady(1.0)


def test_descriptors_arrive_with_their_message(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    other = Channel(theirs)
    read, write = os.pipe()
    other.send(RunnerReady(1.0), (write,))
    os.close(write)
    _, fds = channel.receive(RunnerReply, 5)
    os.write(fds[0], b"through")
    assert os.read(read, 100) == b"through"
    for fd in (*fds, read):
        os.close(fd)
    other.close()


def test_unclaimed_descriptors_are_closed(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    read, write = os.pipe()
    socket.send_fds(theirs, [b"\x05"], [write])
    os.close(write)
    with pytest.raises(ChannelTimeout):
        channel.receive(RunnerReply, 0.02)
    channel.close()
    assert os.read(read, 1) == b""
    os.close(read)
    theirs.close()


def test_waiting_messages_are_detected(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    assert not channel.waiting()
    other.sendall(encoded(RunnerReady(1.0), RunnerReady(2.0)))
    assert channel.waiting()
    channel.receive(RunnerReply, 5)
    assert channel.waiting()
    channel.receive(RunnerReply, 5)
    other.close()
    assert not channel.waiting()


def test_a_receiver_that_does_not_read_cannot_block_the_sender(
    ends: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_SEND_S", 0.05)
    channel, other = ends
    with other, pytest.raises(ChannelClosed):
        channel.send(Fault("crashed", "x" * (32 << 20)))
