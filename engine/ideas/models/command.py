"""``command:CMD``: any program that reads a prompt from standard input and writes the reply to standard output.

The command is the user's own program. It needs the network, its files and its own key, so it does not run in the sandbox that
confines compilers and kernels. It runs in a separate process session, under a time limit and generous limits on address space,
file size and processes. Its process group is killed when it exits, is cancelled or times out.

It inherits the user's environment without the keys of the built-in providers. To pass a key, name it before the command:
``command:OPENAI_API_KEY=$OPENAI_API_KEY agent --print``.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import shlex
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from engine.domain.errors import ProposerError
from engine.domain.model import Usage
from engine.ideas.models.keys import held_variables, scrub
from engine.ideas.models.model import ModelError, OnText, Prompt, Reply, Spent, Trouble
from engine.ideas.models.retry_policy import DEFAULT_POLICY, RetryPolicy, one_line, time_limit, with_schema
from engine.sandbox.confinement import CommandLimits, LimitsOnly
from engine.sandbox.process import signal_group, started, to_its_end

OUTPUT_BYTES = 4 << 20
"""The longest reply."""
MEMORY_BYTES = 128 << 30
"""Address space, not memory: JavaScript runtimes reserve tens of GB of it and use little."""
FILE_BYTES = 8 << 30
PROCESSES = 16_384
"""The operating system counts all of the user's processes; the limit stops a fork bomb, not a build."""
GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL, and to read the last output after the process has exited."""
_STDERR_KEPT = 4096
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The command to run, and the key variables that it receives."""

    argv: tuple[str, ...]
    granted: frozenset[str] = frozenset()


def parse_command(text: str) -> CommandLine:
    """Split a command as a shell would, without running a shell.

    Raises:
        ProposerError: no command, an unclosed quote, or a key or another value that would be recorded.
    """
    if scrub(text) != text:
        raise ProposerError("command: contains a key, which would be recorded with the session: write NAME=$NAME CMD instead")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ProposerError(f"command:{text}: {str(error).lower()}") from None
    granted: set[str] = set()
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        name, value = assignment.groups()
        if value not in (f"${name}", f"${{{name}}}"):
            raise ProposerError(
                f"command: contains a value of {name}, which would be recorded with the session: write {name}=${name}"
            )
        granted.add(name)
        words.pop(0)
    if not words or not words[0]:
        raise ProposerError("command: names no command: write command:CMD, for example 'command:llm -m NAME'")
    return CommandLine(tuple(words), frozenset(granted))


class CommandModel:
    """A command as a model. It reports no tokens: its calls are charged what they could have cost."""

    def __init__(
        self,
        command: str,
        *,
        policy: RetryPolicy = DEFAULT_POLICY,
        output_bytes: int = OUTPUT_BYTES,
        folder: Path | None = None,
        silent: bool = False,
    ) -> None:
        """Raises ProposerError for a malformed command. Whether the program exists is checked on its first run.

        ``folder``: where it runs. ``silent``: it may print nothing.
        """
        self._folder = folder
        self._silent = silent
        self._command = command
        self._line = parse_command(command)
        self._policy = policy
        self._output_bytes = output_bytes

    @property
    def name(self) -> str:
        return f"command:{self._command}"

    @property
    def output_limit(self) -> int | None:
        return None

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        """Raises ModelError; can be cancelled at any time. A command that fails is not asked again."""
        seconds = time_limit(prompt, self._policy)
        reply = _CommandProcess(on_text, self._output_bytes)
        loop = asyncio.get_running_loop()
        environment = self._environment()
        try:
            starting = loop.subprocess_exec(
                lambda: reply, *self._argv(seconds), env=environment, start_new_session=True, cwd=self._folder
            )
            transport, _ = await started(starting, lambda process: _terminate(process[0], reply))
        except OSError as error:
            raise self._failed(Trouble.MODEL, f"failed to start: {error.strerror}") from None
        try:
            async with asyncio.timeout(seconds):
                reply.send(transport, _text(prompt))
                await reply.done.wait()
        except TimeoutError:
            raise self._failed(Trouble.UNREACHABLE, f"no complete reply in {seconds:g} s", reply.last_error_line) from None
        finally:
            await to_its_end(_terminate(transport, reply))
        return self._reply(transport.get_returncode(), reply)

    async def close(self) -> None:
        """Does nothing: no process outlives its prompt."""

    def _reply(self, status: int | None, reply: _CommandProcess) -> Reply:
        if reply.overflowed:
            raise self._failed(Trouble.REPLY, f"wrote more than {self._output_bytes} bytes", reply.last_error_line)
        if status in (126, 127):
            raise self._failed(Trouble.MODEL, "failed to run", reply.last_error_line)
        if status != 0:
            ended = f"was killed by signal {-status}" if status is not None and status < 0 else f"exited with status {status}"
            raise self._failed(Trouble.UNREACHABLE, ended, reply.last_error_line)
        if not reply.text.strip() and not self._silent:
            raise self._failed(Trouble.REPLY, "wrote nothing on standard output", reply.last_error_line)
        return Reply(reply.text, Usage(), counted=False)

    def _failed(self, trouble: Trouble, what: str, last_error_line: str = "") -> ModelError:
        detail = f": {line}" if (line := one_line(last_error_line)) else ""
        spent = Spent.NOTHING if trouble is Trouble.MODEL else Spent.UNKNOWN
        return ModelError(trouble, f"command {self._line.argv[0]!r} {what}{detail}", spent=spent)

    def _environment(self) -> dict[str, str]:
        withheld = held_variables() - self._line.granted
        return {name: value for name, value in os.environ.items() if name not in withheld}

    def _argv(self, seconds: float) -> list[str]:
        """The command with its limits. The limit on CPU time is that of all cores over the time limit; it only matters if this
        process is killed."""
        limits = CommandLimits(seconds * (os.cpu_count() or 1), MEMORY_BYTES, FILE_BYTES)
        script = f'{{ ulimit -u {PROCESSES} || ulimit -p {PROCESSES}; }} 2>/dev/null; exec "$@"'
        return ["/bin/sh", "-c", script, "sh", *LimitsOnly(limits=limits).command(self._line.argv, (), ())]


def missing_program(text: str) -> str:
    """The program of a command line if it is not installed here; empty if it is. Raises ProposerError."""
    program = parse_command(text).argv[0]
    return "" if shutil.which(program) else program


class _CommandProcess(asyncio.SubprocessProtocol):
    """One process of the command: writes the prompt, reads the reply as it arrives."""

    def __init__(self, on_text: OnText, most: int) -> None:
        self._on_text = on_text
        self._most = most
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._stderr = bytearray()
        self._read = 0
        self._open = {1, 2}
        self.overflowed = False
        self.exited = asyncio.Event()
        self.done = asyncio.Event()
        """The process has exited, or has written too much."""
        self.pipes_closed = asyncio.Event()
        """Standard output and standard error have closed."""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def last_error_line(self) -> str:
        """The last line on standard error."""
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def send(self, transport: asyncio.SubprocessTransport, text: str) -> None:
        """Write the prompt and close standard input, whether the command reads it or not."""
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
            self.done.set()
        else:
            self._receive(self._decoder.decode(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and not self.overflowed:
            self._receive(self._decoder.decode(b"", final=True))
        self._open.discard(fd)
        if not self._open:
            self.pipes_closed.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.done.set()

    def _receive(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self._on_text(piece)


async def _terminate(transport: asyncio.SubprocessTransport, process: _CommandProcess) -> None:
    """Kill the process group, read its last output, and close the pipes."""
    group = transport.get_pid()
    try:
        if not process.exited.is_set():
            signal_group(group, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.exited.wait(), GRACE)
    finally:
        signal_group(group, signal.SIGKILL)
        try:
            await process.exited.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.pipes_closed.wait(), GRACE)
        finally:
            transport.close()


def _text(prompt: Prompt) -> str:
    user = prompt.user if prompt.schema is None else with_schema(prompt.user, prompt.schema)
    return f"{prompt.system}\n\n{user}\n" if prompt.system else f"{user}\n"
