"""The channel between judge, host and runner: whole messages or a named error, and no leaked descriptor."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.trial.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout
from engine.trial.messages import (
    ArenaHandle,
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


def encoded(*messages: Message) -> bytes:
    channel, other = Channel.pair()
    with other:
        for message in messages:
            channel.send(message)
        channel.close()
        return b"".join(iter(lambda: other.recv(1 << 16), b""))


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
        (struct.pack("<I", 2 << 20), "two megabytes announced by a runner"),
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


def _drain(channel: Channel, receive: Callable[..., object] | None = None) -> None:
    for _ in range(100):
        (receive or channel.receive)(RunnerReply, 5)


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


def test_the_end_of_the_other_side_is_seen_once_everything_is_received(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    assert not channel.has_ended()
    Channel(other).send(RunnerReady(1.0))
    assert not channel.has_ended()
    other.close()
    assert not channel.has_ended(), "a message is left"
    channel.receive(RunnerReply)
    assert channel.has_ended()


def test_a_receiver_that_does_not_read_cannot_block_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.trial.channel._SEND_S", 0.05)
    channel, other = Channel.pair()
    with other, pytest.raises(ChannelClosed):
        channel.send(Fault("crashed", "x" * (32 << 20)))
    channel.close()


ORDERS = [RunKernel(3), RunKernel(0, 250.5, 7), RunKernel(1, calls=3, holding=True)]
TIMES = [ClaimedTimes(1.5, 2.5, 0.0, 12.5, True), ClaimedTimes(1.0, 2.0, 3.0, 0.0, False, (2**63, 4096))]


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_arrives_between_other_messages(order: RunKernel) -> None:
    judge, theirs = Channel.pair()
    runner = Channel(theirs)
    judge.send(MESSAGES[-1])
    judge.send_order(order)
    judge.send_order(order)
    assert [runner.receive_order(RunnerRequest)[0] for _ in range(3)] == [MESSAGES[-1], order, order]
    judge.close()
    with pytest.raises(ChannelClosed):
        runner.receive_order(RunnerRequest)
    runner.close()


@pytest.mark.parametrize("times", TIMES)
def test_times_arrive_between_other_messages(times: ClaimedTimes) -> None:
    judge, theirs = Channel.pair()
    runner = Channel(theirs)
    runner.send_times(times)
    runner.send(RunnerReady(1.0))
    runner.send_times(times)
    assert [judge.receive_times(RunnerReply, 5)[0] for _ in range(3)] == [times, RunnerReady(1.0), times]
    with pytest.raises(ChannelTimeout):
        judge.receive_times(RunnerReply, 0.02)
    judge.close()
    runner.close()


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_in_place_of_times_arrive_or_raise_a_named_error(noise: bytes) -> None:
    channel, other = Channel.pair()
    with other:
        other.sendall(noise)
        other.shutdown(socket.SHUT_WR)
        with pytest.raises((ChannelGarbled, ChannelClosed)):
            _drain(channel, channel.receive_times)
    channel.close()


def test_descriptors_do_not_pile_up_while_their_message_arrives(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    before = len(os.listdir("/proc/self/fd"))
    with other:
        socket.send_fds(other, [struct.pack("<I", 1 << 20)], [0] * 16)
        for _ in range(8):
            socket.send_fds(other, [b"x"], [0] * 16)
        with pytest.raises(ChannelGarbled, match="descriptors"):
            channel.receive(RunnerReply, 5)
        assert len(os.listdir("/proc/self/fd")) <= before + 80
    channel.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_more_descriptors_than_a_message_may_have_are_garbled(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    with other:
        socket.send_fds(other, [encoded(Fault("crashed", "x"))], [0] * 100)
        with pytest.raises(ChannelGarbled, match="descriptors"):
            channel.receive(RunnerReply, 5)
