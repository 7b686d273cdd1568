"""``command:CMD``: any program that reads a prompt on standard input and writes the reply on standard output.

The command is the user's own program and needs the network, its files and its own key, so it is not put into the sandbox of
compilers and kernels. It gets a session of its own, a time limit and generous limits on address space, file size and
processes, and its whole process group is killed when it ends, is cancelled or runs out of time.

It inherits the user's environment without the keys that this program holds for its own providers: an agent that is to have
one is given it by name, in front of the command: ``command:OPENAI_API_KEY=$OPENAI_API_KEY agent --print``.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import shlex
import signal
from dataclasses import dataclass

from engine.build.confinement import CommandLimits, LimitsOnly
from engine.domain.errors import IdeaSourceError
from engine.domain.model import Usage
from engine.ideas.models.conduct import USUAL, Conduct, json_wanted, one_line
from engine.ideas.models.keys import held_variables, scrub
from engine.ideas.models.model import Heard, ModelError, Prompt, Reply, Trouble

OUTPUT_BYTES = 4 << 20
"""A reply longer than this is no reply."""
MEMORY_BYTES = 128 << 30
"""Address space, not memory: JavaScript runtimes reserve tens of GB of it and use little."""
FILE_BYTES = 8 << 30
PROCESSES = 16_384
"""Counted over all of the user's processes by the kernel; it stops a fork bomb, not a build."""
GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL, and for the last output of a process that has ended."""
_STDERR_KEPT = 4096
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What to run, and the variables that hold keys and that it is given nevertheless."""

    argv: tuple[str, ...]
    granted: frozenset[str] = frozenset()


def parse_command(text: str) -> CommandLine:
    """Split a command as a shell would; no shell runs it.

    Raises:
        IdeaSourceError: no command, quotes that do not end, or a key or another value in it that would be recorded.
    """
    if scrub(text) != text:
        raise IdeaSourceError("command: holds a key, which would be recorded with the session; write NAME=$NAME CMD instead")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise IdeaSourceError(f"command:{text}: {str(error).lower()}") from None
    granted: set[str] = set()
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        name, value = assignment.groups()
        if value not in (f"${name}", f"${{{name}}}"):
            raise IdeaSourceError(
                f"command: write {name}=${name} to hand {name} over; a value would be recorded with the session"
            )
        granted.add(name)
        words.pop(0)
    if not words or not words[0]:
        raise IdeaSourceError("command: has no command: write command:CMD, for example 'command:llm -m NAME'")
    return CommandLine(tuple(words), frozenset(granted))


class CommandModel:
    """A command line as a model. What it spends is between it and its own provider: nothing is counted."""

    def __init__(self, command: str, *, conduct: Conduct = USUAL, output_bytes: int = OUTPUT_BYTES) -> None:
        """Raises IdeaSourceError for a command that cannot be read; whether it exists is seen when it is asked."""
        self._command = command
        self._line = parse_command(command)
        self._conduct = conduct
        self._output_bytes = output_bytes

    @property
    def name(self) -> str:
        return f"command:{self._command}"

    @property
    def counted(self) -> bool:
        return False

    async def ask(self, prompt: Prompt, heard: Heard) -> Reply:
        """Raises ModelError; can be cancelled at any time. A command that fails is not run again: it knows best."""
        reply = _Conversation(heard, self._output_bytes)
        loop = asyncio.get_running_loop()
        environment = self._environment()
        try:
            transport, _ = await loop.subprocess_exec(lambda: reply, *self._argv(), env=environment, start_new_session=True)
        except OSError as error:
            raise self._failed(Trouble.MODEL, f"does not start: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._conduct.seconds):
                reply.question(transport, _text(prompt))
                await reply.ended.wait()
        except TimeoutError:
            raise self._failed(
                Trouble.UNREACHABLE, f"no complete reply in {self._conduct.seconds:g} s", reply.complaint
            ) from None
        finally:
            await asyncio.shield(_see_off(transport, reply))
        return self._reply(transport.get_returncode(), reply)

    async def close(self) -> None:
        """Nothing is kept between two questions."""

    def _reply(self, status: int | None, reply: _Conversation) -> Reply:
        if reply.overflowed:
            raise self._failed(Trouble.REPLY, f"wrote more than {self._output_bytes} bytes", reply.complaint)
        if status in (126, 127):
            raise self._failed(Trouble.MODEL, "cannot be run", reply.complaint)
        if status != 0:
            ended = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
            raise self._failed(Trouble.UNREACHABLE, ended, reply.complaint)
        if not reply.text.strip():
            raise self._failed(Trouble.REPLY, "wrote nothing on standard output", reply.complaint)
        return Reply(reply.text, Usage())

    def _failed(self, trouble: Trouble, what: str, complaint: str = "") -> ModelError:
        said = f": {line}" if (line := one_line(complaint)) else ""
        return ModelError(trouble, f"command {self._line.argv[0]!r} {what}{said}")

    def _environment(self) -> dict[str, str]:
        withheld = held_variables() - self._line.granted
        return {name: value for name, value in os.environ.items() if name not in withheld}

    def _argv(self) -> list[str]:
        """The command under its limits. Processor time is bounded only for one whose keeper was killed: it is that which all
        cores together can spend in the time limit."""
        limits = CommandLimits(self._conduct.seconds * (os.cpu_count() or 1), MEMORY_BYTES, FILE_BYTES)
        script = f'{{ ulimit -u {PROCESSES} || ulimit -p {PROCESSES}; }} 2>/dev/null; exec "$@"'
        return ["/bin/sh", "-c", script, "sh", *LimitsOnly(limits=limits).command(self._line.argv, (), ())]


class _Conversation(asyncio.SubprocessProtocol):
    """One process: its question written, its reply read as it comes."""

    def __init__(self, heard: Heard, most: int) -> None:
        self._heard = heard
        self._most = most
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._stderr = bytearray()
        self._read = 0
        self._open = {1, 2}
        self.overflowed = False
        self.exited = asyncio.Event()
        self.ended = asyncio.Event()
        """It has exited, or said too much."""
        self.silent = asyncio.Event()
        """Nothing more can come."""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def complaint(self) -> str:
        """The last line on standard error."""
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def question(self, transport: asyncio.SubprocessTransport, text: str) -> None:
        """Write the prompt and close standard input. A command that does not read it is within its rights."""
        pipe = transport.get_pipe_transport(0)
        if isinstance(pipe, asyncio.WriteTransport):
            pipe.write(text.encode("utf-8", "replace"))
            pipe.write_eof()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr += data
            del self._stderr[:-_STDERR_KEPT]
            return
        self._read += len(data)
        if self._read > self._most:
            self.overflowed = True
            self.ended.set()
        else:
            self._hear(self._decoder.decode(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and not self.overflowed:
            self._hear(self._decoder.decode(b"", final=True))
        self._open.discard(fd)
        if not self._open:
            self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.ended.set()

    def _hear(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self._heard(piece)


async def _see_off(transport: asyncio.SubprocessTransport, process: _Conversation) -> None:
    """End the whole group, take what it said last, and close the pipes."""
    group = transport.get_pid()
    if not process.exited.is_set():
        _signal(group, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.exited.wait(), GRACE)
    _signal(group, signal.SIGKILL)
    await process.exited.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.silent.wait(), GRACE)
    transport.close()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _text(prompt: Prompt) -> str:
    user = prompt.user if prompt.schema is None else json_wanted(prompt.user, prompt.schema)
    return f"{prompt.system}\n\n{user}\n" if prompt.system else f"{user}\n"
