"""Commands as models: failures, processes, environment."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from support.model_servers import OPENAI_KEY

from engine.domain.errors import ProposerError
from engine.ideas.models.command import CommandLine, CommandModel, parse_command
from engine.ideas.models.model import ModelError, Prompt, Trouble
from engine.ideas.models.retry_policy import RetryPolicy

QUICK = RetryPolicy(seconds=5.0)
SCHEMA = {"type": "object"}


def ask(command: str, prompt: Prompt = Prompt("system", "user"), policy: RetryPolicy = QUICK, **options: int) -> str:  # noqa: B008
    model = CommandModel(command, policy=policy, **options)
    return asyncio.run(model.ask(prompt, lambda _: None)).text


def fails(command: str, policy: RetryPolicy = QUICK, **options: int) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(command, policy=policy, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_the_prompt_is_on_standard_input() -> None:
    assert ask("cat") == "system\n\nuser\n"
    assert ask("cat", Prompt("", "user")) == "user\n"
    assert ask("cat", Prompt("", "user", SCHEMA)).endswith('{"type": "object"}\n')


def test_commands_are_split_like_a_shell_without_running_one() -> None:
    assert parse_command("agent --say 'two words' \"and 'more'\"") == CommandLine(("agent", "--say", "two words", "and 'more'"))
    assert ask("echo '$HOME;' $(id) | cat") == "$HOME; $(id) | cat\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "names no command"),
        ("  ", "names no command"),
        ("agent 'unended", "no closing quotation"),
        ("OPENAI_API_KEY=$OPENAI_API_KEY", "names no command"),
        ("TOKEN=abc agent", "write TOKEN=$TOKEN"),
        (f"agent --key {OPENAI_KEY}", "contains a key"),
    ],
)
def test_invalid_commands_are_rejected(command: str, words: str) -> None:
    with pytest.raises(ProposerError) as caught:
        parse_command(command)
    assert words in str(caught.value)
    assert OPENAI_KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "trouble", "words"),
    [
        ("/nowhere/agent", Trouble.MODEL, "failed to run"),
        (
            "sh -c 'echo first >&2; echo no credit left >&2; exit 3'",
            Trouble.UNREACHABLE,
            "exited with status 3: no credit left",
        ),
        ("sh -c 'kill -9 $$'", Trouble.UNREACHABLE, "was killed by signal 9"),
        ("true", Trouble.REPLY, "wrote nothing"),
        ("sh -c 'echo   '", Trouble.REPLY, "wrote nothing"),
    ],
)
def test_failures_are_one_line(command: str, trouble: Trouble, words: str) -> None:
    error = fails(command)
    assert error.trouble is trouble
    assert words in str(error)


def test_a_reply_without_end_is_cut_off() -> None:
    began = time.monotonic()
    error = fails("yes", output_bytes=10_000)
    assert error.trouble is Trouble.REPLY
    assert "more than 10000 bytes" in str(error)
    assert time.monotonic() - began < 4.0


def test_a_command_need_not_read_its_prompt() -> None:
    assert ask("echo done", Prompt("", "x" * 2_000_000)) == "done\n"


def test_invalid_utf8_is_replaced() -> None:
    assert ask(r"printf 'a\377b'") == "a\N{REPLACEMENT CHARACTER}b"


def test_a_time_out_kills_the_process_group(tmp_path: Path) -> None:
    script = f"sh -c 'sleep 60 & echo $! > {tmp_path}/child; echo thinking >&2; trap \"\" TERM; sleep 60; sleep 60'"
    error = fails(script, RetryPolicy(seconds=0.3))
    assert error.trouble is Trouble.UNREACHABLE
    assert "no complete reply in 0.3 s: thinking" in str(error)
    assert gone(int((tmp_path / "child").read_text()))


def test_cancelling_kills_the_process_group(tmp_path: Path) -> None:
    async def body() -> None:
        model = CommandModel(f"sh -c 'sleep 60 & echo $! > {tmp_path}/child; mv {tmp_path}/child {tmp_path}/there; wait'")
        call = asyncio.create_task(model.ask(Prompt("", "x"), lambda _: None))
        while not (tmp_path / "there").exists():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(body())
    assert gone(int((tmp_path / "there").read_text()))


def test_cancelling_while_the_command_starts_kills_the_process_group(tmp_path: Path) -> None:
    """The child ran on, and cancelling waited for it."""

    async def body() -> None:
        model = CommandModel(f"sh -c 'sleep 60 & echo $! > {tmp_path}/child; mv {tmp_path}/child {tmp_path}/there; wait'")
        call = asyncio.create_task(model.ask(Prompt("", "x"), lambda _: None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it has forked, and has not yet been told that the process runs
        deadline = time.monotonic() + 20
        while not (tmp_path / "there").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, 20)

    asyncio.run(body())
    assert gone(int((tmp_path / "there").read_text()))


def test_a_surviving_child_does_not_delay_the_reply(tmp_path: Path) -> None:
    began = time.monotonic()
    assert ask(f"sh -c 'sleep 60 & echo $! > {tmp_path}/child; echo done'") == "done\n"
    assert time.monotonic() - began < 4.0
    assert gone(int((tmp_path / "child").read_text()))


def test_limits_apply_to_the_command() -> None:
    limits = ask("sh -c 'ulimit -a'")
    assert "unlimited" not in next(line for line in limits.splitlines() if line.startswith("file"))
    assert ask("cat /proc/self/limits").count("unlimited") < Path("/proc/self/limits").read_text().count("unlimited")


def test_the_command_runs_in_its_own_process_session() -> None:
    assert int(ask("sh -c 'cut -d\" \" -f6 /proc/$$/stat'")) != os.getsid(0)
