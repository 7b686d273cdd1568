"""Composes prompts: fills the templates with the facts of a session. Pure except for reading the templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from engine.codegen import scaffold
from engine.codegen.naive import abi
from engine.domain.errors import EspalierError
from engine.domain.model import CATEGORIES, Author, Contract, Dialect, FailureKind, IdeaText, Signature
from engine.domain.state import SessionState
from engine.ideas.models.model import Prompt
from engine.ideas.prompts import context, history
from engine.ideas.prompts.context import NOTHING
from engine.ideas.prompts.templates import fenced, part, template
from engine.ideas.proposer import CodeRequest, IdeaRequest, RepairRequest
from engine.ideas.replies import IDEAS_FORM, IDEAS_SCHEMA
from engine.problem import header

MAX_IDEAS_TOKENS = 16_000
MAX_CODE_TOKENS = 32_000
"""Longest reply in tokens, reasoning included."""

_MAX_HEADER = 24_000


@dataclass(frozen=True, slots=True)
class Turn:
    """Which of several implementations of one idea is requested, and the code of the earlier ones."""

    number: int
    of: int
    written: tuple[str, ...]


def ideas(request: IdeaRequest, author: Author, count: int, remarks: Mapping[str, str]) -> Prompt:
    """The prompt for a round's ideas. ``remarks`` maps kernel ids to compiler output."""
    state = request.state
    parents = [k for k in request.parents if k in state.kernels and k in request.code]
    described = [context.kernel_facts(state, state.kernels[k], request.code[k], remarks.get(k, "")) for k in parents]
    system, user = template("ideas").fill(
        setting=context.setting(state),
        parents="\n\n".join(described) or NOTHING,
        outcomes=history.outcomes(state),
        notes=history.notes(state),
        instructions=instructions(state),
        record=history.record(state, author),
        count=str(count),
        round=str(request.round),
        offered=", ".join(parents) or "the naive port",
        language=_LANGUAGE[request.dialect],
        categories=", ".join(CATEGORIES),
        form=fenced(json.dumps(IDEAS_FORM, indent=2), "json"),
    )
    return Prompt(system, user, IDEAS_SCHEMA, MAX_IDEAS_TOKENS)


_LANGUAGE = {
    Dialect.CUDA: "CUDA C++ (one .cu file)",
    Dialect.CPP: "C++ for the CPU (one .cpp file)",
    Dialect.PYTHON: "Python (a PyTorch module, Triton where it helps)",
}


def code(request: CodeRequest, turn: Turn) -> Prompt:
    """The prompt for one implementation of one idea."""
    state, idea = request.state, request.idea
    parent = state.kernels.get(idea.parent or "")
    shown = NOTHING
    if parent is not None and request.parent_code is not None:
        shown = context.kernel_facts(state, parent, request.parent_code)
    beside = [
        context.kernel_facts(state, state.kernels[k], text) for k, text in request.materials.items() if k in state.kernels
    ]
    system, user = template("code").fill(
        abi=abi_guide(state, request.dialect),
        setting=context.setting(state),
        parent=shown,
        materials="\n\n".join(beside) or NOTHING,
        idea=idea_text(idea.text),
        instructions=instructions(state),
        task=_task(turn, request.dialect),
        fence=request.dialect.value,
    )
    return Prompt(system, user, None, MAX_CODE_TOKENS)


def _task(turn: Turn, dialect: Dialect) -> str:
    task = "Implement the idea as one complete kernel."
    if not turn.written:
        return task
    earlier = "\n\n".join(fenced(text, dialect.value) for text in turn.written)
    return (
        f"{task} This is implementation {turn.number} of {turn.of}; the earlier ones are below. Implement the same idea in a "
        f"different way: change the layout of work, data or instructions, not just names or tunable values.\n\n{earlier}"
    )


def repair(request: RepairRequest) -> Prompt:
    """The prompt to repair a failed kernel, with the output of its compiler or of the correctness check."""
    state, kernel = request.state, request.kernel
    idea = state.ideas.get(kernel.idea)
    kind = kernel.failure.kind if kernel.failure is not None else FailureKind.BUILD_FAILED
    system, user = template("repair").fill(
        abi=abi_guide(state, kernel.dialect),
        setting=context.setting(state),
        idea=idea_text(idea.text) if idea else NOTHING,
        code=fenced(request.code, kernel.dialect.value),
        failure=context.failure(kind, request.reason, request.log),
        instructions=instructions(state),
        constraints=_constraints(kernel.contract, kernel.tunables),
        fence=kernel.dialect.value,
    )
    return Prompt(system, user, None, MAX_CODE_TOKENS)


def _constraints(contract: Contract, tunables: Mapping[str, int]) -> str:
    kept = f"Keep the {contract.value} contract."
    if not tunables:
        return f"{kept} The kernel has no tunables; add none."
    values = ", ".join(f"{name} = {value}" for name, value in tunables.items())
    return f"{kept} Keep one `@tune` line for each of its tunables and add no others. It failed with {values}."


def again(prompt: Prompt, reason: str) -> Prompt:
    """The same prompt, followed by why the last reply was rejected."""
    user = part("again", user=prompt.user, reason=reason)
    return Prompt(prompt.system, user, prompt.schema, prompt.max_output)


def prompt_text(prompt: Prompt) -> str:
    """A prompt as one text, as it is recorded and displayed."""
    return f"{prompt.system}\n\n{prompt.user}\n"


def instructions(state: SessionState) -> str:
    """The engineer's standing instructions."""
    return state.instructions.strip() or NOTHING


def idea_text(text: IdeaText) -> str:
    """An idea with its rationale, expected effect and risks."""
    lines = [f"**{text.title}** ({text.category})"]
    lines += [text.rationale] if text.rationale else []
    lines += [f"Expected effect: {text.expected}"] if text.expected else []
    lines += [f"Risks: {text.risks}"] if text.risks else []
    return "\n\n".join(lines)


def abi_guide(state: SessionState, dialect: Dialect) -> str:
    """How to write kernels of a dialect: the contracts, a skeleton and ``problem.h``."""
    if state.preparation is None or state.device is None or state.opened is None:
        return NOTHING
    signature = state.preparation.signature
    frame = fenced(scaffold.empty_kernel(signature, dialect), dialect.value)
    if dialect is Dialect.PYTHON:
        return part("abi_python", frame=frame)
    parts = {"frame": frame, "header": fenced(_header(signature, dialect, state.opened.settings.workload), "c")}
    host = fenced(f'extern "C" void launch({abi(signature, dialect, plain=True)});', "c")
    if dialect is Dialect.CPP:
        return part("abi_cpp", host=host, **parts)
    return part("abi_cuda", host=host, arch=state.device.arch, grammar=scaffold.GRAMMAR, **parts)


def _header(signature: Signature, dialect: Dialect, workload: str) -> str:
    try:
        text = header.render(signature, dialect, workload)
    except EspalierError as error:
        return f"/* {error} */"
    return text if len(text) <= _MAX_HEADER else f"{text[:_MAX_HEADER]}\n/* ... truncated: the same for every other operand */"
