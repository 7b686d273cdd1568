"""Composes prompts: fills the templates with the facts of a session. Pure except for reading the templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine.codegen import scaffold
from engine.codegen.naive import abi
from engine.domain.errors import EspalierError
from engine.domain.model import CATEGORIES, Author, Contract, Dialect, FailureKind, IdeaText, Signature
from engine.domain.state import SessionState
from engine.ideas.models.model import AgentWorkspace, Prompt
from engine.ideas.prompts import context, hardware, history, menu
from engine.ideas.prompts.context import NOTHING
from engine.ideas.prompts.templates import fenced, part, template
from engine.ideas.proposer import CodeRequest, IdeaRequest, RepairRequest
from engine.ideas.replies import IDEAS_FORM, IDEAS_SCHEMA
from engine.ideas.win_rates import shipped_rates
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
    described = _each_code_once(state, {name: request.code[name] for name in parents}, remarks)
    setting = context.setting(state)
    system, user = template("ideas").fill(
        setting=setting,
        parents="\n\n".join(described) or NOTHING,
        menu=_menu(state, request.dialect),
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
    return Prompt(system, user, IDEAS_SCHEMA, MAX_IDEAS_TOKENS, stable=_stable(setting, user))


def _each_code_once(
    state: SessionState, code: Mapping[str, str], remarks: Mapping[str, str], shown: Mapping[str, str] | None = None
) -> list[str]:
    """The kernels with their code; of several with the same code, the first shows it. ``shown``: code above → its kernel."""
    first = dict(shown or {})
    described: list[str] = []
    for name, text in code.items():
        if name in state.kernels:
            described.append(
                context.kernel_facts(state, state.kernels[name], text, remarks.get(name, ""), first.get(text, ""))
            )  # fmt: skip
            first.setdefault(text, name)
    return described


def _menu(state: SessionState, dialect: Dialect) -> str:
    if state.device is None or state.preparation is None:
        return NOTHING
    prior = state.opened.settings.prior if state.opened is not None else ()
    rates = prior or shipped_rates(state.device.kind)
    preparation = state.preparation
    operands = menu.Operands.kind(operand.dtype for operand in preparation.signature.operands)
    here = menu.Situation(state.device, preparation.bound, preparation.gate.allowed, operands, dialect)
    return menu.optimisations(here, rates) or NOTHING


def _setting_for_code(state: SessionState, dialect: Dialect) -> str:
    """The setting; only the dialects of C have another list of the operands, in ``problem.h``."""
    return context.setting(state, operands=dialect in (Dialect.PYTHON, Dialect.TRITON))


def _stable(setting: str, user: str) -> int:
    """Characters at the beginning of a prompt that later prompts of the session repeat: up to the end of its setting."""
    fixed = setting.strip("\n")
    place = user.find(fixed)
    return place + len(fixed) if place >= 0 else 0


_LANGUAGE = {
    Dialect.CUDA: "CUDA C++ (one .cu file)",
    Dialect.CPP: "C++ for the CPU (one .cpp file)",
    Dialect.TRITON: "Triton (one .py file of @triton.jit functions with # @launch lines)",
    Dialect.PYTHON: "Python (a PyTorch module, Triton where it helps)",
}


def code(request: CodeRequest, turn: Turn) -> Prompt:
    """The prompt for one implementation of one idea."""
    state, idea = request.state, request.idea
    parent = state.kernels.get(idea.parent or "")
    shown = NOTHING
    if parent is not None and request.parent_code is not None:
        shown = context.kernel_facts(state, parent, request.parent_code)
    above = {request.parent_code: parent.id} if parent is not None and request.parent_code is not None else {}
    others = {name: text for name, text in request.materials.items() if parent is None or name != parent.id}
    beside = _each_code_once(state, others, {}, above)
    setting = _setting_for_code(state, request.dialect)
    system, user = template("code").fill(
        abi=abi_guide(state, request.dialect),
        setting=setting,
        parent=shown,
        materials="\n\n".join(beside) or NOTHING,
        idea=idea_text(idea.text),
        instructions=instructions(state),
        task=_task(turn, request.dialect),
        fence=request.dialect.language,
    )
    files = {"parent": request.parent_code or "", **request.materials}
    workspace = _workspace(state, request.session, files, shown)
    return Prompt(system, user, None, MAX_CODE_TOKENS, workspace, _stable(setting, user))


def _task(turn: Turn, dialect: Dialect) -> str:
    task = "Implement the idea as one complete kernel."
    if not turn.written:
        return task
    earlier = "\n\n".join(fenced(text, dialect.language) for text in turn.written)
    return (
        f"{task} This is implementation {turn.number} of {turn.of}; the earlier ones are below. Implement the same idea in a "
        f"different way: change the layout of work, data or instructions, not just names or tunable values.\n\n{earlier}"
    )


def repair(request: RepairRequest) -> Prompt:
    """The prompt to repair a failed kernel, with the output of its compiler or of the correctness check."""
    state, kernel = request.state, request.kernel
    idea = state.ideas.get(kernel.idea)
    kind = kernel.failure.kind if kernel.failure is not None else FailureKind.BUILD_FAILED
    setting = _setting_for_code(state, kernel.dialect)
    system, user = template("repair").fill(
        abi=abi_guide(state, kernel.dialect),
        setting=setting,
        idea=idea_text(idea.text) if idea else NOTHING,
        code=fenced(request.code, kernel.dialect.language),
        failure=context.failure(
            kind, request.reason, request.log, kernel.failure.mismatches if kernel.failure is not None else ()
        ),
        instructions=instructions(state),
        constraints=_constraints(kernel.contract, kernel.tunables),
        earlier=_earlier(request),
        fence=kernel.dialect.language,
    )
    evidence = context.failure(kind, request.reason, request.log)
    workspace = _workspace(state, request.session, {"failed": request.code}, evidence)
    return Prompt(system, user, None, MAX_CODE_TOKENS, workspace, _stable(setting, user))


def _earlier(request: RepairRequest) -> str:
    """The attempts before the present code, each with its code and why it failed."""
    shown: list[str] = []
    for number, (text, failed) in enumerate(request.earlier, 1):
        code = "the present code" if text == request.code else fenced(text, request.kernel.dialect.language)
        shown.append(f"Attempt {number} failed: {context.failure(failed.kind, failed.reason, '')}\n\n{code}")
    return "\n\n".join(shown) or NOTHING


def _workspace(state: SessionState, session: Path | None, kernels: Mapping[str, str], evidence: str) -> AgentWorkspace | None:
    """The files of a workspace: the reference, kernels by what they are, and what was measured. No hold-outs."""
    if session is None or state.opened is None:
        return None
    suffix = {kernel.id: kernel.dialect.suffix for kernel in state.kernels.values()}
    default = next(iter(suffix.values()), ".txt")
    files = {f"{name}{suffix.get(name, default)}": text for name, text in kernels.items() if text}
    return AgentWorkspace(session, {"reference.py": state.opened.problem.reference, "evidence.md": evidence, **files})


def _constraints(contract: Contract, tunables: Mapping[str, int]) -> str:
    kept = f"Keep the {contract.value} contract."
    if not tunables:
        return f"{kept} The kernel has no tunables; add none."
    values = ", ".join(f"{name} = {value}" for name, value in tunables.items())
    return f"{kept} Keep one `@tune` line for each of its tunables and add no others. It failed with {values}."


def again(prompt: Prompt, reason: str) -> Prompt:
    """The same prompt, followed by why the last reply was rejected."""
    user = part("again", user=prompt.user, reason=reason)
    return replace(prompt, user=user)


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
    frame = fenced(scaffold.empty_kernel(signature, dialect, listed=False), dialect.language)
    if dialect is Dialect.PYTHON:
        return part("abi_python", frame=frame)
    if dialect is Dialect.TRITON:
        names = "\n".join(f"{name} = {value}" for name, value in header.plan_names(signature, state.device.units).items())
        return part(
            "abi_triton", frame=frame, arch=state.device.arch, grammar=scaffold.TRITON_GRAMMAR, names=fenced(names, "text")
        )
    parts = {"frame": frame, "header": fenced(_header(signature, dialect, state.opened.settings.workload), "c")}
    parts["hardware"] = hardware.snippets(state.device) or NOTHING
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
