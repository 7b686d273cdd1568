"""Every attempt at a kernel in a session, with its verdict, its reward, its prompt and its reply.

The call ``implement:iX`` wrote the first attempt, ``repair:kX:N`` the one after attempt N. Without a recorded call (a playbook,
a hand-written kernel) prompt and reply are reconstructed from the recorded fields and marked as such. Writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.domain import corroboration
from engine.domain import events as e
from engine.domain.figure_text import exact
from engine.domain.folds import advance
from engine.domain.model import Blob, Device, Dialect, Failure, Problem
from engine.domain.state import CallStatus, Idea, Kernel, ModelCall, SessionState
from engine.domain.work import Implement, Repair, WorkKey
from engine.export import rewards

Read = Callable[[Blob], str]
"""Returns a payload as text. Raises JournalCorrupt if it is missing or damaged."""


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One session to export."""

    name: str
    entries: tuple[e.Entry, ...]
    read: Read
    licence: str
    """The licence of code that models and people wrote, as stated by the exporter."""
    shipped: bool = False
    """Whether the problem ships with the program. If so, its playbook's kernels have the program's licence."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt and its reply."""

    prompt: str
    reply: str
    origin: Literal["recorded", "reconstructed"]
    model: str
    """A model's name, or the kernel's author."""
    call: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One version of a kernel's code, and its verdict."""

    kernel: Kernel
    idea: Idea | None
    number: int
    last: bool
    code: str
    parent_code: str | None
    verdict: str
    """``measured``, ``not_corroborated``, ``quarantined``, the kind of failure, ``cancelled``, or ``unsettled``."""
    failure: Failure | None
    reward: rewards.Reward
    exchange: Exchange
    question: str
    """The prompt of the idea's first attempt, the same for all its implementations."""
    device: Device | None


def attempts(recording: RecordedSession) -> tuple[SessionState, list[Attempt]]:
    """The session's state and all attempts: kernels in drafting order, each kernel's attempts oldest first."""
    state = advance(SessionState(), recording.entries)
    reader = _Reader(recording, state)
    return state, [reader.attempt(k, n) for k in state.kernels.values() for n in range(k.attempt + 1)]


class _Reader:
    """Finds the prompt, reply and verdict of an attempt in one session."""

    def __init__(self, recording: RecordedSession, state: SessionState) -> None:
        self._read = recording.read
        self._state = state
        events = [entry.event for entry in recording.entries]
        self._failures = {(x.kernel, x.attempt): x.failure for x in events if isinstance(x, e.AttemptFailed)}
        self._devices = [x.device for x in events if isinstance(x, e.SessionPrepared)]

    def attempt(self, kernel: Kernel, number: int) -> Attempt:
        state = self._state
        last = number == kernel.attempt
        failure = self._failures.get((kernel.id, number)) if not last else kernel.failure
        reward = rewards.kernel_reward(state, kernel)
        if not last:
            reward = rewards.failure_reward(failure.kind) if failure is not None else rewards.UNKNOWN
        parent = state.kernels.get(kernel.parent or "")
        code = self._code(kernel, number)
        parent_code = self._read(parent.source) if parent is not None else None
        device = self._devices[kernel.epoch - 1] if 0 < kernel.epoch <= len(self._devices) else None
        question = self._question(kernel, parent_code, device)
        exchange = self._exchange(kernel, number, code, question)
        verdict = _verdict(kernel) if last else failure.kind.value if failure is not None else "unsettled"
        return Attempt(
            kernel, state.ideas.get(kernel.idea), number, last, code, parent_code, verdict, failure, reward, exchange,
            question, device,
        )  # fmt: skip

    def _code(self, kernel: Kernel, number: int) -> str:
        return self._read((*kernel.earlier, kernel.source)[number])

    def _question(self, kernel: Kernel, parent_code: str | None, device: Device | None) -> str:
        calls = self._calls(Implement(kernel.idea).key)
        if calls and not kernel.seed:
            return self._read((self._call_for(calls, self._code(kernel, 0)) or calls[0]).prompt)
        return _reconstructed_prompt(self._state, kernel, parent_code, device)

    def _exchange(self, kernel: Kernel, number: int, code: str, question: str) -> Exchange:
        work = Implement(kernel.idea).key if number == 0 else Repair(kernel.id, number - 1).key
        call = None if kernel.seed and number == 0 else self._call_for(self._calls(work), code)
        if call is not None:
            return Exchange(self._read(call.prompt), self._read(call.reply), "recorded", call.model, call.id)
        prompt = question
        if number:
            failure = self._failures.get((kernel.id, number - 1))
            reason = f"{failure.kind.value}: {failure.reason}" if failure else "failed"
            prompt = (
                f"{question}\n\nAn earlier attempt failed ({reason}):\n{fenced(self._code(kernel, number - 1), kernel.dialect)}"
            )
        return Exchange(prompt, fenced(code, kernel.dialect), "reconstructed", kernel.author.name)

    def _calls(self, work: WorkKey) -> list[ModelCall]:
        return [c for c in self._state.calls.values() if c.work == work and c.status is CallStatus.ANSWERED]

    def _call_for(self, calls: Sequence[ModelCall], code: str) -> ModelCall | None:
        """The call whose reply contains this code, or the only call; ``None`` if ambiguous."""
        holding = [c for c in calls if _without_trailing_space(code) in _without_trailing_space(self._read(c.reply))]
        if holding:
            return holding[-1]
        return calls[0] if len(calls) == 1 else None


def _verdict(kernel: Kernel) -> str:
    return corroboration.status(kernel) if kernel.stage.settled else "unsettled"


def _without_trailing_space(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def fenced(code: str, dialect: Dialect | str) -> str:
    """The code as a Markdown block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    name = dialect.language if isinstance(dialect, Dialect) else dialect
    return f"{fence}{name}\n{code.rstrip()}\n{fence}"


def _reconstructed_prompt(state: SessionState, kernel: Kernel, parent_code: str | None, device: Device | None) -> str:
    """A prompt made from recorded fields."""
    assert state.opened is not None, "every journal starts with SessionOpened"
    problem, settings = state.opened.problem, state.opened.settings
    idea = state.ideas.get(kernel.idea)
    place = f"{device.name}, {device.arch}" if device else state.opened.device
    parts = [
        f"Write a {kernel.dialect.value} kernel under the {kernel.contract.value} contract for "
        f"{problem.title or problem.name}, workload {_workload(problem, settings.workload)}, on {place}.",
        f"Reference:\n{fenced(problem.reference, 'python')}",
    ]
    if parent_code is not None:
        parts.append(f"Parent kernel:\n{fenced(parent_code, kernel.dialect)}")
    if idea is not None:
        parts.append(f"Idea ({idea.text.category}): {idea.text.title}\n{idea.text.rationale}".rstrip())
    return "\n\n".join(parts)


def _workload(problem: Problem, name: str) -> str:
    found = problem.workload(name)
    shape = ", ".join(f"{key}={exact(value)}" for key, value in found.settings.items()) if found else ""
    return f"{name} ({shape})" if shape else name
