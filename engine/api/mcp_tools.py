"""What an agent may do: the tools of the MCP server, each a function of the agent's access.

``READING`` and ``CHANGING`` list them. A parameter's annotation describes it to the client, as the docstring does the tool.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field

from engine.api import agent_views as views
from engine.api.agents import AgentAccess, bounded
from engine.api.evaluation import evaluate_here, request
from engine.api.mcp_waiting import LONGEST_WAIT, reporter, wait_for_outcome
from engine.api.profiling import profile_kernel
from engine.domain import commands as c
from engine.domain import queries
from engine.domain.model import CATEGORIES
from engine.ideas.authoring import dialect_of
from engine.ideas.prompts import compose, context
from engine.journal import store
from engine.problem import catalog
from engine.session import requirements
from engine.session.devices import devices

Data = dict[str, Any]
CallContext = Context[Any, Any]

SessionName = Annotated[str, Field(description="Name of a session, from list_sessions or open_session.")]
KernelId = Annotated[str, Field(description="Kernel of the session, e.g. k3.")]
Code = Annotated[str, Field(description="The complete source text.")]
FileName = Annotated[str, Field(description="kernel.cu (CUDA), kernel.cpp (C++ on a CPU) or kernel.py (Triton, ModelNew).")]
ProblemName = Annotated[str, Field(description="A shipped name, or a file in the server's folder.")]
DeviceLabel = Annotated[str | None, Field(description="cpu or cuda:N. Default: the first device that runs it.")]
WorkloadName = Annotated[str | None, Field(description="Default: small on a CPU, full on a GPU.")]
SuiteName = Annotated[str | None, Field(description="Judge on this suite of workloads instead of one workload.")]


async def list_problems(access: AgentAccess) -> Data:
    """The problems that ship: name, title, workloads and suites."""
    shipped = await asyncio.to_thread(catalog.shipped)
    return {"problems": [views.problem_names(one) for one in shipped]}


async def get_problem(access: AgentAccess, problem: ProblemName) -> Data:
    """The reference of a problem (PyTorch) and its workloads. Hold-out shapes stay hidden."""
    return views.problem_data(access.problem(problem))


async def doctor(access: AgentAccess) -> Data:
    """This machine: devices, missing tools, and the verdicts left to you."""
    return {
        "devices": [{"label": label, "name": name} for label, name in devices()],
        "missing": list(await requirements.missing_tools()),
        "agent": access.author.name,
        "verdicts": {"budget": access.limits.verdicts, "used": access.verdicts_used},
    }


async def list_sessions(access: AgentAccess) -> Data:
    """All sessions, the latest activity first."""
    only = access.limits.only
    found = await asyncio.to_thread(store.summaries)
    fault = await asyncio.to_thread(store.root_fault)
    return {
        "sessions": [
            {"session": s.name, "problem": s.problem, "workload": s.workload, "device": s.device, "status": s.status,
             "incumbent": s.incumbent, "kernels": s.kernels, "awaiting_approval": s.awaiting}
            for s in found if only is None or s.folder.name == only.rpartition("/")[2]
        ],
        **({"incomplete": fault} if fault else {}),
    }  # fmt: skip


async def get_session(access: AgentAccess, session: SessionName) -> Data:
    """Where a session stands: kernel tree, incumbent, ideas awaiting approval, ideas that you should write now."""
    return views.session_data(access.session(session), access.author.name)


async def get_guide(access: AgentAccess, session: SessionName) -> Data:
    """How to write kernels for this session: device, operands, contracts, tolerance, roofline, and a skeleton."""
    state = access.session(session).state
    parts = (context.workload_facts, context.tolerance, context.roofline)
    return {
        "device": context.device_facts(state.device) if state.device else "not prepared yet: wait_for the session",
        **{part.__name__: part(state) if state.preparation else "" for part in parts},
        "how_to_write": compose.abi_guide(state, dialect_of(state)),
    }


async def list_ideas(access: AgentAccess, session: SessionName) -> Data:
    """Every idea with its decision, its kernels and its measured gain; and how well each author predicted."""
    state = access.session(session).state
    return {
        "ideas": [views.idea_data(state, idea) for idea in state.ideas.values()],
        "predictions": views.prediction_data(state),
        "categories": list(CATEGORIES),
    }


async def get_kernel(access: AgentAccess, session: SessionName, kernel: KernelId) -> Data:
    """A kernel: code, verdict, evidence why it is slow or wrong."""
    found = access.session(session)
    return views.kernel_data(found, found.kernel(kernel))


async def diff_kernel(access: AgentAccess, session: SessionName, kernel: KernelId) -> Data:
    """A unified diff of a kernel against its parent."""
    found = access.session(session)
    return {"diff": views.kernel_diff(found, found.kernel(kernel))}


async def wait_for(
    access: AgentAccess,
    session: SessionName,
    subject: Annotated[str, Field(description="An idea (i3): until it is decided. A kernel (k5): until its verdict. "
                                              "session: until the naive port is measured.")],
    ctx: CallContext,
    timeout_seconds: Annotated[
        float, Field(ge=0, le=LONGEST_WAIT, description="Shorter than your client's own limit for a call.")
    ] = 45.0,
) -> Data:  # fmt: skip
    """Wait for an outcome, with progress notifications. After the timeout it returns with done = false: call it again."""
    return await wait_for_outcome(access.session(session), subject, timeout_seconds, ctx)


async def open_session(
    access: AgentAccess,
    problem: ProblemName,
    ctx: CallContext,
    device: Annotated[str | None, Field(description="cpu or cuda:N. Default: the first GPU, else the CPU.")] = None,
    workload: WorkloadName = None,
    suite: SuiteName = None,
) -> Data:
    """Open a new session whose ideas come from you and from people. It runs until this server ends."""
    asked = access.problem(problem)
    session = await asyncio.to_thread(access.open, asked, device, workload, suite, reporter(ctx))
    return views.session_data(session, access.author.name)


async def resume_session(access: AgentAccess, session: SessionName, ctx: CallContext) -> Data:
    """Run an existing session here, if no other process runs it, or continue one that stopped here."""
    found = access.session(session)
    await asyncio.to_thread(found.start, reporter(ctx))
    return views.session_data(found, access.author.name)


async def propose_idea(
    access: AgentAccess,
    session: SessionName,
    title: Annotated[str, Field(description="The optimisation in one line.")],
    rationale: Annotated[str, Field(description="Why it should help, from the evidence.")],
    category: Annotated[str, Field(description=f"One of: {', '.join(CATEGORIES)}.")],
    predicted: Annotated[float | None, Field(description="Predicted speedup over the parent; it is scored.")] = None,
    parent: Annotated[str | None, Field(description="Parent kernel. Default: the incumbent.")] = None,
    expected: Annotated[str, Field(description="What should change in the measurements.")] = "",
    risks: Annotated[str, Field(description="What could go wrong.")] = "",
) -> Data:
    """Propose an idea. It costs no compute. In mode ask an engineer decides on it: wait_for it, then write_kernel."""
    for name, text in (("title", title), ("rationale", rationale), ("expected", expected), ("risks", risks)):
        bounded(text, name)
    found = access.session(session)
    idea = await asyncio.to_thread(
        functools.partial(
            found.propose, title, rationale, category=category, predicted=predicted, parent=parent, expected=expected,
            risks=risks,
        )
    )  # fmt: skip
    return views.idea_data(found.state, found.state.ideas[idea])


async def write_kernel(
    access: AgentAccess,
    session: SessionName,
    idea: Annotated[str, Field(description="An approved idea of yours, or of the engineer.")],
    code: Code,
    name: FileName,
) -> Data:
    """Give the code of an approved idea. It is built, verified and measured: wait_for the kernel. Costs one verdict."""
    found = access.session(session)
    kernel = await access.charge(functools.partial(found.seed, access.code(code, name), idea=idea))
    return views.kernel_figures(found.state, found.kernel(kernel))


async def seed_kernel(
    access: AgentAccess,
    session: SessionName,
    code: Code,
    name: FileName,
    title: Annotated[str, Field(description="What the kernel does, in one line.")],
    parent: Annotated[str | None, Field(description="The kernel it builds on.")] = None,
) -> Data:
    """Add a kernel of yours. On autopilot it is measured at once (one verdict); in mode ask its idea awaits approval."""
    kernel, found = access.code(code, name), access.session(session)
    if found.state.mode.is_autopilot:
        seeded = await access.charge(functools.partial(found.seed, kernel, parent=parent, title=bounded(title, "title")))
        return views.kernel_figures(found.state, found.kernel(seeded))
    idea = await access.charge(functools.partial(found.propose, title, "A kernel that is already written.", parent=parent))
    return {**views.idea_data(found.state, found.state.ideas[idea]), "next": f"wait_for {idea}, then write_kernel for it"}


async def withdraw_idea(
    access: AgentAccess, session: SessionName, idea: Annotated[str, Field(description="An idea of yours, e.g. i4.")]
) -> Data:
    """Park an idea of yours that you will not write."""
    found = access.session(session)
    await asyncio.to_thread(found.submit, c.ParkIdea(idea))
    return views.idea_data(found.state, found.state.ideas[idea])


async def add_note(
    access: AgentAccess,
    session: SessionName,
    text: Annotated[str, Field(description="The note, in plain words.")],
    on: Annotated[str, Field(description="k3, i2, r1, or empty for the session.")] = "",
) -> Data:
    """Leave a note for the engineer."""
    found = access.session(session)
    await asyncio.to_thread(found.note, bounded(text, "the note"), on)
    return {"noted": True}


async def evaluate_kernel(
    access: AgentAccess,
    problem: ProblemName,
    code: Code,
    name: FileName,
    ctx: CallContext,
    device: DeviceLabel = None,
    workload: WorkloadName = None,
    suite: SuiteName = None,
) -> Data:
    """Verify and measure one kernel without a session. Costs one verdict."""
    asked, kernel = access.problem(problem), access.code(code, name)
    wanted = request(asked, kernel, device=device, workload=workload, suite=suite)
    async with access.measuring:
        await access.hold()
        found = await evaluate_here(wanted, reporter(ctx))
    return views.verdict_data(found.verdict)


async def race_kernels(
    access: AgentAccess,
    session: SessionName,
    kernel: KernelId,
    against: Annotated[str | None, Field(description="Default: the incumbent.")] = None,
) -> Data:
    """Race two measured kernels on fresh samples. Costs one verdict; the result appears in get_kernel and get_session."""
    found = access.session(session)
    await access.charge(lambda: found.race(kernel, against))
    return {"queued": True}


async def profile(access: AgentAccess, session: SessionName, kernel: KernelId, ctx: CallContext) -> Data:
    """Read a kernel's hardware counters, on a CPU also its hot code, and keep them in the session. Costs one verdict."""
    session_ = access.session(session)
    wanted = session_.kernel(kernel)
    label = queries.device_label(session_.state)
    async with access.measuring:
        await access.hold()
        try:
            found = await profile_kernel(session_.folder, session_.state, wanted, label, reporter(ctx))
        except BaseException:
            access.evaluations -= 1
            raise
    await access.charge(lambda: session_.submit(lambda view: [found.command(view)]), held=True)
    return {
        "kernel": kernel,
        "read": found.profile.was_read,
        "evidence": list(context.evidence(session_.state, session_.kernel(kernel))),
    }


READING = (
    list_problems, get_problem, doctor, list_sessions, get_session, get_guide, list_ideas, get_kernel, diff_kernel, wait_for,
)  # fmt: skip
"""Tools that change nothing, so an agent program need not ask its user."""
CHANGING = (
    open_session, resume_session, propose_idea, write_kernel, seed_kernel, withdraw_idea, add_note, evaluate_kernel,
    race_kernels, profile,
)  # fmt: skip
"""Tools that record or measure something. None destroys anything or leaves this machine."""
