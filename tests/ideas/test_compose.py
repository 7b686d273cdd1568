"""The content of prompts, and what they never contain."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain.mismatch import Mismatch, Observation, Pattern, WrongElement
from engine.domain.model import Author, Dialect, Failure, FailureKind, Operand, Resources, Role
from engine.domain.profile import Profile
from engine.domain.state import SessionState
from engine.ideas.models.model import Prompt
from engine.ideas.prompts import compose, context, history
from engine.ideas.proposer import CodeRequest, IdeaRequest, RepairRequest
from engine.ideas.replies import IDEAS_SCHEMA

HOLDOUT = "on hold-out shape batch_size=37, dim=5001: wrong in 3 places"
SOURCES = {"k1": "// the root\nint root;", "k2": "// faster\nint faster;"}
TALE = (
    *b.first_round(),
    e.RoundOpened(1, ("k1",)),
    b.proposed("i2", "i3", "i4", "i5", round_number=1, parent="k1"),
    e.IdeaSelected("i2"),
    e.IdeaRejected("i3", "we did this last year"),
    e.IdeaSelected("i4"),
    e.IdeaParked("i5"),
    *b.measured_kernel("k2", 1.4, idea="i2", parent="k1", round_number=1, tunables={"BLOCK": 4}),
    b.drafted("k3", idea="i2", parent="k1", round_number=1),
    e.KernelFailed("k3", Failure(FailureKind.MISMATCH, HOLDOUT)),
    e.IdeaImplemented("i2", ("k2", "k3")),
    b.drafted("k4", idea="i4", parent="k1", round_number=1),
    e.KernelFailed("k4", b.failure()),
    e.IdeaImplemented("i4", ("k4",)),
    e.NoteAdded("k2", "look at the tail"),
    e.InstructionsChanged("no intrinsics, please"),
    e.RoundClosed(1),
)


@pytest.fixture
def state() -> SessionState:
    return b.fold(*TALE)


def _ideas(state: SessionState, author: str = "playbook") -> Prompt:
    request = IdeaRequest(state, 2, ("k2", "k1"), 3, Dialect.CPP, SOURCES)
    return compose.ideas(request, Author(author), 5, {"k2": "kernel.cpp:7: loop vectorized\n" * 100})


def test_the_ideas_prompt_contains_all_results(state: SessionState) -> None:
    text = compose.prompt_text(_ideas(state))
    for expected in (
        "torch.softmax(x, dim=1)",  # the reference
        "x: input, 128 x 16384, float32", "DIM = 16384",  # the workload
        "class fp32 or better", "2 cores available",  # tolerance and device
        "speed of light (SOL): 800 us, bound by bytes", "21 GB/s copy bandwidth",
        "baseline eager: 3000 us (speedups are relative to it)",
        "int faster;", "int root;", "32 registers, no spills", "BLOCK = 4", "loop vectorized",
        "1.40x (1.36 to 1.44) over its parent k1", "rejected by the engineer: we did this last year",
        "DEAD: none of its 1 kernels was verified", "1 of 1 failed, build_failed: line 7: expected ';'", "parked, not tried",
        "k2: look at the tail", "no intrinsics, please", "1 scored: median error a factor of 1.17",
        "Propose 5 ideas for round 2", "memory access, asynchrony and latency hiding",
    ):  # fmt: skip
        assert expected in text, expected
    assert "... 76 more lines" in text
    assert text.index("int faster;") < text.index("int root;"), "best first"
    assert _ideas(state).schema is IDEAS_SCHEMA


def _with_mixes(**mixes: dict[str, int]) -> SessionState:
    """The session with recorded instruction mixes."""
    return b.fold(*(
        replace(event, instructions=mixes.get(event.kernel, {})) if isinstance(event, e.KernelBuilt) else event
        for event in TALE
    ))  # fmt: skip


def test_prompts_contain_the_instruction_mix_and_its_changes_from_the_parent() -> None:
    state = _with_mixes(k1={"fma": 4, "total": 200, "xmm": 60}, k2={"fma": 64, "total": 260, "ymm": 90})
    asked = compose.code(CodeRequest(state, state.ideas["i2"], Dialect.CPP, "int a;", SOURCES), compose.Turn(1, 1, ()))
    for text in (_ideas(state).user, asked.user):
        root, fast = text.index("## k1"), text.index("## k2")
        assert "static instruction count: 260, of which 90 ymm, 64 fma\n" in text[fast:]
        assert "since its parent: ymm 0 → 90, xmm 60 → 0, fma 4 → 64" in text[fast:]
        assert "static instruction count: 200, of which 60 xmm, 4 fma\n" in text[root:]


def test_instruction_mixes_are_compared_only_within_one_dialect_and_device() -> None:
    read = _with_mixes(k1={"fma": 4, "total": 200}, k2={"fma": 64, "total": 260})
    unread = _with_mixes(k2={"fma": 64, "total": 260})
    elsewhere = replace(read, kernels={**read.kernels, "k1": replace(read.kernels["k1"], epoch=0)})
    other = replace(read, kernels={**read.kernels, "k1": replace(read.kernels["k1"], dialect=Dialect.PYTHON)})
    assert "since its parent" in _ideas(read).user
    for state in (unread, elsewhere, other):
        text = _ideas(state).user
        assert "260, of which 64 fma" in text
        assert "since its parent" not in text


def test_the_order_in_which_families_were_counted_changes_no_prompt() -> None:
    mix = {"fma": 9, "gather": 9, "total": 80, "xmm": 30, "ymm": 2}
    turned = dict(reversed(mix.items()))
    root = {"call": 3, "stack": 3, "total": 70}
    assert _ideas(_with_mixes(k1=root, k2=mix)) == _ideas(_with_mixes(k1=dict(reversed(root.items())), k2=turned))


def test_authors_see_only_their_own_record(state: SessionState) -> None:
    assert "None of your predictions has been measured yet." in _ideas(state, "openai:other").user


MISMATCH = Mismatch(
    "out", (37, 5001), 4903, 185_037, 1e-5,
    (
        Observation(
            Pattern.TAIL, "the last 133 of 5001 indices of dimension 1: out[:, 4868:5001]", "the end of the last dimension"
        ),
    ),
    (WrongElement((0, 4868), 0.71828, 0.5, 0.4),), call=2,
)  # fmt: skip


def test_a_repair_prompt_says_where_the_output_is_wrong(state: SessionState) -> None:
    reason = "call 2: centred error 1.00e-01, worst element 4.00e-01 of its scale"
    failed = replace(state.kernels["k3"], failure=Failure(FailureKind.MISMATCH, reason, mismatches=(MISMATCH,)))
    text = compose.repair(RepairRequest(state, failed, "int b;", reason, "")).user
    assert f"mismatch: {reason}\n- wrong: out: 4903 of 185037 elements (2.65%)" in text
    assert "- where: the last 133 of 5001 indices of dimension 1: out[:, 4868:5001]" in text
    assert "- element: out[0, 4868] = 0.5, expected 0.71828, error 0.4 of its scale" in text


def test_of_a_hold_out_shape_a_repair_prompt_has_the_pattern_only(state: SessionState) -> None:
    reason = "on hold-out shape batch_size=37, dim=5001: call 2: out: 4903 of 185037 elements not written, the first at 4868"
    failure = Failure(FailureKind.MISMATCH, reason, mismatches=(replace(MISMATCH, holdout=True),))
    failed = replace(state.kernels["k3"], failure=failure)
    prompt = compose.repair(RepairRequest(state, failed, "int b;", reason, ""))
    assert "- out, on a hold-out shape: the end of the last dimension" in prompt.user
    words = set(re.findall(r"\d+", compose.prompt_text(prompt)))
    assert not words & {"37", "5001", "4903", "185037", "4868", "133", "71828"}


def test_hold_out_shapes_are_never_shown(state: SessionState) -> None:
    failed = replace(state.kernels["k3"], failure=Failure(FailureKind.MISMATCH, HOLDOUT))
    prompts = [
        _ideas(state),
        compose.code(CodeRequest(state, state.ideas["i2"], Dialect.CPP, "int a;", SOURCES), compose.Turn(1, 1, ())),
        compose.repair(RepairRequest(state, failed, "int b;", HOLDOUT, "batch_size=37, dim=5001 ...")),
    ]
    for prompt in prompts:
        text = compose.prompt_text(prompt)
        assert "5001" not in text
        assert "=37" not in text
    assert "mismatch: on a hold-out shape: wrong in 3 places" in prompts[2].user


@pytest.mark.parametrize("dialect", list(Dialect))
def test_code_prompts_contain_the_contract_of_their_dialect(state: SessionState, dialect: Dialect) -> None:
    turn = compose.Turn(1, 2, ())
    text = compose.code(CodeRequest(state, state.ideas["i2"], dialect, SOURCES["k1"], {"k2": "int beside;"}), turn).user
    form = {
        Dialect.CUDA: ("// @launch KERNEL(arg, ...)", "void launch(const x_t* x", "cudaStream_t", "#define X_DIM1 16384"),
        Dialect.CPP: ('extern "C" void launch(const x_t* x', "-fopenmp", "#define X_DIM1 16384"),
        Dialect.TRITON: ("# @launch FUNCTION(arg, ...", "@triton.jit", "X_DIM1 = 16384"),
        Dialect.PYTHON: ("class ModelNew", "def forward(self, x)", "# @tune"),
    }  # fmt: skip
    for expected in (
        *form[dialect],
        "int root;",
        "int beside;",
        "Split rows over cores variant2",
        f"one ```{dialect.language} code",
    ):
        assert expected in text, expected
    assert "This is implementation" not in text
    assert text.count("cudaStream_t") == (dialect is Dialect.CUDA)


def test_later_implementations_are_asked_to_differ_from_earlier_ones(state: SessionState) -> None:
    turn = compose.Turn(2, 3, ("int first; // ``` {{idea}}",))
    text = compose.code(CodeRequest(state, state.ideas["i2"], Dialect.CPP, None), turn).user
    assert "This is implementation 2 of 3" in text
    assert "````cpp\nint first; // ``` {{idea}}\n````" in text


def test_a_repair_prompt_has_the_first_errors_and_the_constraints(state: SessionState) -> None:
    kernel = replace(state.kernels["k2"], failure=b.failure())
    log = "\n".join(["In file included", "note: noise"] + [f"k2.cpp:{n}:1: error: number {n}" for n in range(1, 500)])
    text = compose.repair(RepairRequest(state, kernel, SOURCES["k2"], "line 7: expected ';'", log)).user
    assert "error: number 1\n" in text
    assert "error: number 400\n" not in text
    assert "more lines" in text
    assert "build_failed: line 7: expected ';'" in text
    assert "Keep the host contract." in text
    assert "It failed with BLOCK = 4" in text


def test_a_repeated_prompt_contains_the_reason_for_the_rejection(state: SessionState) -> None:
    first = _ideas(state)
    second = compose.again(first, "no JSON {{user}}")
    assert second.user.startswith(first.user)
    assert second.user.count("no JSON {{user}}") == 1
    assert (second.system, second.schema, second.max_output) == (first.system, first.schema, first.max_output)


def test_prompts_work_before_the_session_is_prepared() -> None:
    state = b.fold(b.opened(), e.RoundOpened(0, ()))
    text = compose.ideas(IdeaRequest(state, 1, (), 1, Dialect.CUDA), Author("paste"), 3, {}).user
    assert "None." in text
    assert not re.search(r"\{\{\w+\}\}", text)


def test_known_architectures_show_their_limits() -> None:
    gpu = replace(b.device("H200"), kind="cuda", arch="sm_90a", units=132, memory_bytes=141 << 30)
    assert "132 multiprocessors" in context.device_facts(gpu)
    assert "227 KiB a block" in context.device_facts(gpu)
    assert "KiB a block" not in context.device_facts(replace(gpu, arch="sm_999"))


def test_evidence_lists_spills_stacks_and_failures(state: SessionState) -> None:
    use = (Resources("row", 255, 49152, 64, 16),)
    kernel = replace(state.kernels["k4"], resources=use)
    text = "\n".join(context.evidence(state, kernel))
    assert "summary: 255 registers, 64 bytes spilled, 49152 bytes of static shared memory" in text
    assert text.count("255 registers") == 1, "each fact once"
    assert "failed (build_failed): line 7" in text


def test_evidence_lists_counters_with_the_parents_in_brackets(state: SessionState) -> None:
    child = next(k for k in state.kernels.values() if k.parent)
    parent = replace(state.kernels[child.parent or ""], profile=b.profile(1000.0))
    seen = replace(state, kernels={**state.kernels, parent.id: parent})
    text = "\n".join(context.evidence(seen, replace(child, profile=b.profile())))
    assert "counters, parent in brackets: duration 812.2 us (from 1000 us)" in text
    on_cpu = Profile(0, "perf", "a processor", 1, {"instructions": 2.5e9, "cycles": 1e9, "ipc": 2.5, "calls": 40.0})
    text = "\n".join(context.evidence(seen, replace(child, profile=on_cpu)))
    assert "instructions 2.5 G, cycles 1 G (mean of 40 calls)" in text
    assert "bottleneck by counters: 2.50 instructions a cycle: the cores are busy." in text
    refused = replace(child, profile=Profile(0, note="no ncu"))
    assert "counters" not in "\n".join(context.evidence(seen, refused)), "a model can do nothing about that"


def test_unknown_dtypes_and_very_many_operands_are_handled(state: SessionState) -> None:
    assert state.preparation is not None
    many = tuple(Operand(f"w{n}", Role.PARAMETER, (8, 8), "float32") for n in range(2000))
    signature = replace(state.preparation.signature, operands=(*state.preparation.signature.operands, *many))
    wide = replace(state, preparation=replace(state.preparation, signature=signature))
    assert "truncated: the same for every other operand" in compose.abi_guide(wide, Dialect.CUDA)
    odd = replace(signature, operands=(Operand("x", Role.INPUT, (2,), "complex64"), *signature.operands[1:2]))
    strange = replace(state, preparation=replace(state.preparation, signature=odd))
    assert "complex64" in compose.abi_guide(strange, Dialect.CPP)


def test_the_history_lists_quarantined_kernels() -> None:
    state = b.fold(*TALE[:-1], e.KernelQuarantined("k2", ("faster than light",), None, None))
    assert "1 of 2 quarantined: faster than light" in history.outcomes(state)


def test_the_history_shows_ideas_in_progress_and_without_code() -> None:
    state = b.fold(
        *b.first_round(), b.proposed("i2", "i3", "i4", round_number=1), e.IdeaSelected("i2"), e.IdeaSelected("i3"),
        e.IdeaImplemented("i3", (), "nothing is scripted"),
    )  # fmt: skip
    text = history.outcomes(state)
    assert "being implemented" in text
    assert "no kernel: nothing is scripted" in text
    assert "awaiting approval" in text
