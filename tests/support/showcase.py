"""A showcase search: six rounds on softmax, with every outcome, badge and decision that a screen must show.

``session()`` gives the state with its entries; ``read_blob`` answers for its sources, logs and samples. Always the same.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

from support import builders as b

from engine.domain import events as e
from engine.domain import model as m
from engine.domain.folds import advance
from engine.domain.settings import Limits
from engine.domain.state import SessionState

MODEL = m.Author("openai:gpt-test")
ENGINEER = m.ENGINEER
BASELINE_US = 5430.0
FLOOR_US = 1180.0

NAIVE = """#include "problem.h"
#include <cmath>

extern "C" void launch(const float* x, float* out, void*) {
    for (long row = 0; row < BATCH_SIZE; ++row) {
        const float* in = x + row * DIM;
        float top = -INFINITY, sum = 0;
        for (long i = 0; i < DIM; ++i) top = in[i] > top ? in[i] : top;
        for (long i = 0; i < DIM; ++i) sum += std::exp(in[i] - top);
        for (long i = 0; i < DIM; ++i) out[row * DIM + i] = std::exp(in[i] - top) / sum;
    }
}
"""
ONLINE = """#include "problem.h"
#include <cmath>
// @tune BLOCK = 256, 512, 1024
// @tune UNROLL = 4, 8

static inline void take(float value, float& top, float& sum) {
    if (value > top) { sum *= std::exp(top - value); top = value; }
    sum += std::exp(value - top);
}

extern "C" void launch(const float* x, float* out, void*) {
    #pragma omp parallel for schedule(static)
    for (long row = 0; row < BATCH_SIZE; ++row) {
        const float* in = x + row * DIM;
        float top = -INFINITY, sum = 0;
        for (long i = 0; i < DIM; ++i) take(in[i], top, sum);
        const float scale = 1 / sum;                     /* one division a row */
        for (long i = 0; i < DIM; ++i) out[row * DIM + i] = std::exp(in[i] - top) * scale;
    }
}
"""
COMPILER = """k6.cpp: In function 'void launch(const float*, float*, void*)':
k6.cpp:19:41: error: expected ';' before '}' token
   19 |         out[row * DIM + i] = x[i] * scale
      |                                          ^
      |                                          ;
compilation terminated: [bold red]this is not markup[/bold red] \x1b[31mnor an escape\x1b[0m
"""


@dataclass(frozen=True)
class Try:
    """One planned kernel: its idea, its parent, and its outcome."""

    kernel: str
    idea: str
    parent: str | None
    round: int
    speedup: float = 0.0
    ends: str = "measured"
    author: m.Author = b.PLAYBOOK
    tunables: tuple[tuple[str, int], ...] = ()
    seed: bool = False


IDEAS: tuple[tuple[str, int, str | None, str, str, str, float | None, m.Author], ...] = (
    ("i1", 0, None, "Naive port", "control flow", "A direct translation of the reference, row by row.", None, b.PLAYBOOK),
    ("i2", 1, "k1", "Keep a running maximum and sum in one pass", "memory access",
     "The parent reads each row three times. An online maximum with a rescaled sum needs two, so a third of the traffic goes. "
     "The exponential is evaluated once more an element, which the vector units have room for.", 1.4, b.PLAYBOOK),
    ("i3", 1, "k1", "Split rows over the cores", "occupancy",
     "Rows are independent and the parent uses one core. Static chunks keep each core on its own pages.", 1.9, b.PLAYBOOK),
    ("i4", 1, "k1", "Approximate the exponential with a polynomial", "instructions",
     "std::exp is a call that does not vectorise. A degree-five polynomial after range reduction stays within fp32's error.",
     2.2, MODEL),
    ("i5", 2, "k3", "Stream stores past the cache", "memory access",
     "The output is not read again: stores that bypass the cache spare the read for ownership.", 1.25, b.PLAYBOOK),
    ("i6", 2, "k3", "Fuse both passes over an L2-sized block of rows", "memory access",
     "The second pass finds the row in L2 when the block is small enough.", 1.3, MODEL),
    ("i7", 3, "k7", "Prefetch the next row while this one is reduced", "asynchrony and latency hiding",
     "The reduction's dependency chain leaves load slots idle; a software prefetch 512 bytes ahead fills them.", 1.1, MODEL),
    ("i8", 3, "k7", "Reduce in eight independent chains", "instructions",
     "One accumulator is a chain of four-cycle additions. Eight hide the latency [not markup: [b]x[/b]].", 1.35, ENGINEER),
    ("i9", 4, "k14", "Half-precision exponent table", "precision and tensor cores",
     "A table of 2^(i/64) in fp16 halves the work of the range reduction.", 1.5, MODEL),
    ("i10", 5, "k14", "Pin threads to cores and first-touch the output", "occupancy",
     "Migrations cost a cold L2 each time. Pinning and first touch keep pages where they are used.", 1.08, b.PLAYBOOK),
    ("i11", 5, "k14", "Take two rows at a time", "instructions",
     "Two rows share the loop's overhead and double the independent work in flight.", 1.15, MODEL),
    ("i12", 5, "k12", "Replace the division by a reciprocal estimate", "instructions",
     "One Newton step after an estimate is within fp32's class and frees the divider.", None, ENGINEER),
)  # fmt: skip

TRIES = (
    Try("k1", "i1", None, 0, 0.42),
    Try("k2", "i2", "k1", 1, 0.71, tunables=(("BLOCK", 256),)),
    Try("k3", "i3", "k1", 1, 1.31),
    Try("k4", "i3", "k1", 1, 1.02, "screen", tunables=(("CHUNK", 16),)),
    Try("k5", "i4", "k1", 1, 0, "mismatch", MODEL),
    Try("k6", "i4", "k1", 1, 0, "build_failed", MODEL),
    Try("k7", "i5", "k3", 2, 1.78, tunables=(("BLOCK", 512), ("UNROLL", 8))),
    Try("k8", "i5", "k3", 2, 1.66, "screen", tunables=(("BLOCK", 256), ("UNROLL", 4))),
    Try("k9", "i6", "k3", 2, 0, "crashed", MODEL),
    Try("k10", "i6", "k3", 2, 1.44, author=MODEL),
    Try("k11", "i7", "k7", 3, 1.80, author=MODEL),
    Try("k12", "i8", "k7", 3, 2.36, author=ENGINEER, tunables=(("CHAINS", 8),)),
    Try("k13", "i8", "k7", 3, 2.11, "screen", author=ENGINEER, tunables=(("CHAINS", 4),)),
    Try("k14", "i8", "k12", 3, 2.83, author=ENGINEER, tunables=(("CHAINS", 8), ("BLOCK", 1024)), seed=True),
    Try("k15", "i9", "k14", 4, 0, "timed_out", MODEL),
    Try("k16", "i9", "k14", 4, 2.79, author=MODEL),
    Try("k17", "i9", "k14", 4, 0, "cancelled", MODEL),
    Try("k18", "i10", "k14", 5, 0, "measuring", tunables=(("PIN", 1),)),
    Try("k19", "i10", "k14", 5, 0, "verifying", tunables=(("PIN", 2),)),
    Try("k20", "i11", "k14", 5, 0, "building", MODEL),
    Try("k21", "i11", "k14", 5, 0, "waiting", MODEL),
    Try("k22", "i11", "k14", 5, 7.9, "quarantined", MODEL),
)

_REASONS = {
    "mismatch": "every element must lie within 3.0e-06 of its scale: 4.1e-03 at out[17, 9031] (expected 6.1e-05, got 5.8e-05)",
    "build_failed": "k6.cpp:19:41: expected ';' before '}' token",
    "crashed": "signal 11 (SIGSEGV) in launch, 64 bytes past the end of x",
    "timed_out": "no answer in 20 s on the first trial",
}


DOUBTS = (
    "faster than the speed of light: 687 us measured, no less than 1.18 ms possible",
    "its times do not grow with the number of rows [b]at all[/b]",
)
PROMPT = "You are asked for the code of one kernel.\n\n# The idea\n\nTake two rows at a time.\n"


def _source(kernel: str) -> str:
    if kernel == "k1":
        return NAIVE
    number = int(kernel[1:])
    if number < 3:
        return ONLINE
    streamed = ONLINE.replace("static inline", "static constexpr int CHAINS = 8;\n\nstatic inline") if number >= 12 else ONLINE
    return streamed.replace("/* one division a row */", f"// variant {kernel}")


def _samples(kernel: str, speedup: float) -> str:
    """The raw samples as the judge writes them."""
    dice = random.Random(kernel)

    def times(centre: float) -> list[list[list[float]]]:
        claims = [centre * (1 + abs(dice.gauss(0, 0.012)) + (0.08 if dice.random() < 0.04 else 0)) for _ in range(40)]
        return [[[round(c, 3), round(c + 12, 3), 3.1] for c in claims]]

    pairs = [{"eager": times(BASELINE_US)[0], "kernel": times(BASELINE_US / speedup)[0]} for _ in range(4)]
    return json.dumps({"unit": "us", "columns": ["claimed", "wall", "idle"], "pairs": pairs})


def _blobs() -> dict[str, str]:
    texts = [COMPILER, PROMPT, "no warnings\n", *(_source(t.kernel) for t in TRIES)]
    texts += [_samples(t.kernel, t.speedup) for t in TRIES if t.speedup]
    return {b.digest(text): text for text in texts}


BLOBS = _blobs()


def read_blob(digest: str) -> str:
    """The payload of that name; KeyError if unknown."""
    return BLOBS[digest]


def _measurement(attempt: Try, depth: str) -> m.Measurement:
    spread = 0.006 + 0.05 * (depth == "screen") + (0.03 if attempt.kernel == "k11" else 0)
    time_us = BASELINE_US / attempt.speedup
    return m.Measurement(
        depth, b.interval(time_us, spread), 160 if depth == "precise" else 20, 4 if depth == "precise" else 1,
        {"eager": b.interval(attempt.speedup, spread)}, m.SpeedOfLight("bytes", FLOOR_US, FLOOR_US / time_us), True,
        ("cold caches", "2 of 162 samples disturbed by CPU contention"), b.digest(_samples(attempt.kernel, attempt.speedup)),
    )  # fmt: skip


def _resources(attempt: Try) -> tuple[m.Resources, ...]:
    number = int(attempt.kernel[1:])
    return (m.Resources("softmax_rows", 30 + 3 * number, 1024 * (number % 5), 16 * (number % 3 == 0), 32),)


def _life(attempt: Try) -> list[e.Event]:
    kernel = attempt.kernel
    built = e.KernelBuilt(kernel, f"artefact {kernel}", 0.84, _resources(attempt), b.digest("no warnings\n"))
    seen = e.KernelVerified(kernel, b.verification(), _measurement(attempt, "screen"), 0.9) if attempt.speedup else None
    drafted = e.KernelDrafted(
        kernel, attempt.idea, attempt.parent, attempt.round, attempt.author, f"{kernel}.cpp", m.Dialect.CPP, m.Contract.HOST,
        b.digest(_source(kernel)), dict(attempt.tunables), attempt.seed,
    )  # fmt: skip
    match attempt.ends:
        case "measured":
            assert seen is not None
            return [drafted, built, seen, e.KernelMeasured(kernel, _measurement(attempt, "precise"), 2.4)]
        case "screen":
            assert seen is not None
            return [drafted, built, seen, e.KernelMeasured(kernel, _measurement(attempt, "screen"), 0.0)]
        case "build_failed":
            failure = m.Failure(m.FailureKind.BUILD_FAILED, _REASONS["build_failed"], b.digest(COMPILER))
            return [drafted, e.KernelFailed(kernel, failure, 0.7)]
        case "cancelled":
            return [drafted, e.KernelCancelled(kernel, "the engineer has seen enough")]
        case "building":
            return [drafted, e.WorkStarted(f"build:{kernel}:0")]
        case "verifying":
            return [drafted, built, e.WorkStarted(f"verify:{kernel}:0")]
        case "measuring":
            screened = replace(attempt, speedup=2.9)
            verified = e.KernelVerified(kernel, b.verification(), _measurement(screened, "screen"), 0.9)
            return [drafted, built, verified, e.WorkStarted(f"measure:{kernel}:0")]
        case "waiting":
            return [drafted]
        case "quarantined":
            return [drafted, built, e.KernelQuarantined(kernel, DOUBTS, b.verification(), _measurement(attempt, "screen"), 1.0)]
        case kind:
            failure = m.Failure(m.FailureKind(kind), _REASONS[kind], b.digest(COMPILER))
            return [drafted, built, e.KernelFailed(kernel, failure, 1.1)]


def _proposed(number: int) -> tuple[e.ProposedIdea, ...]:
    return tuple(
        e.ProposedIdea(name, m.IdeaText(title, category, why, predicted), parent, author, 1 if number == 0 else 2)
        for name, round_number, parent, title, category, why, predicted, author in IDEAS
        if round_number == number
    )


def _calls(number: int) -> list[e.Event]:
    """The model calls of a round: ideas, the code of each idea, and one repair."""
    prompt, said = b.digest(PROMPT), []
    asked = [("ideas", f"propose:{number}", "openai:gpt-test", 3100)]
    asked += [("code", f"implement:{i.id}", "openai:gpt-test", 5200) for i in _proposed(number) if i.author == MODEL]
    asked += [("repair", "repair:k9:0", "gemini:mystery", 6100)] if number == 2 else []
    for place, (role, work, model, size) in enumerate(asked):
        call, priced = f"c{10 * number + place}", model != "gemini:mystery"
        usage = m.Usage(size + 400 * number, 2048 if number > 1 else 0, 700 + 90 * place)
        said += [
            e.CallStarted(call, work, m.CallRole(role), model, prompt, 9000),
            e.CallAnswered(call, prompt, usage, 0.011 + 0.002 * place if priced else None, "stop", 9.4 + place),
        ]
    return said


def history() -> list[e.Event]:
    """All events, in an order that the rules could produce."""
    prepared = e.SessionPrepared(
        b.device("Two honest cores"), replace(b.preparation(), floor_us=FLOOR_US, baselines={
            "eager": replace(b.measurement(1.0), time_us=b.interval(BASELINE_US, 0.01)),
            "compile": replace(b.measurement(1.3), time_us=b.interval(BASELINE_US / 1.3, 0.01)),
        }),
    )  # fmt: skip
    said: list[e.Event] = [b.opened(mode="ask", branch=2, source="openai:gpt-test", limits=Limits(rounds=8)), prepared]
    for number in range(6):
        parents = {0: (), 1: ("k1",), 2: ("k3", "k1"), 3: ("k7", "k3"), 4: ("k14", "k7"), 5: ("k14", "k12")}[number]
        said += [
            e.RoundOpened(number, parents),
            *(_calls(number) if number else ()),
            e.IdeasProposed(number, _proposed(number), True),
        ]
        for idea in _proposed(number):
            said += [e.IdeaSelected(idea.id)] if idea.id != "i12" else []
        tries = [t for t in TRIES if t.round == number]
        for attempt in tries:
            said += _life(attempt)
        if number < 5:
            implemented = [i.id for i in _proposed(number)]
            said += [e.IdeaImplemented(i, tuple(t.kernel for t in tries if t.idea == i)) for i in implemented]
            said.append(e.RoundClosed(number))
        if number == 2:
            said += [e.BranchPruned("k2", "two passes will not beat one"), e.KernelPinned("k7")]
            said.append(e.NoteAdded("k7", "the streamed stores are what did it: see the write counters"))
        if number == 3:
            said.append(e.KernelSanitized("k14", 0, ("address", "undefined"), (), "", "", 3.1))
            said.append(e.NoteAdded("", "look at the branch predictor before trusting k12"))
    return said


def session() -> tuple[SessionState, tuple[e.Entry, ...]]:
    """The state and the entries that lead to it."""
    log = b.entries(history())
    log = tuple(replace(x, by=m.ENGINEER) if isinstance(x.event, e.NoteAdded | e.BranchPruned) else x for x in log)
    return advance(SessionState(), log), log
