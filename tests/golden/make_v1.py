"""Writes ``v1/session.jsonl``: a short session with every kind of event of journal format 1.

The file is committed and never made anew once the format is released: it stands for the journals that people have. Until then
``python tests/golden/make_v1.py`` writes it, and with ``--digest`` prints the digest that the test holds.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]

from support import builders as b  # noqa: E402
from support.digests import state_digest  # noqa: E402

from engine.domain import events as e  # noqa: E402
from engine.domain.folds import advance  # noqa: E402
from engine.domain.model import (  # noqa: E402
    ENGINE,
    ENGINEER,
    CallRole,
    FailureKind,
    Interval,
    RaceOutcome,
    Succession,
    Usage,
    WorkloadChoice,
    WorkloadTuning,
)
from engine.domain.settings import CallOptions, Limits, ModelServer, ModelSettings, Pauses  # noqa: E402
from engine.domain.state import SessionState  # noqa: E402
from engine.journal import codec  # noqa: E402

GOLDEN = Path(__file__).resolve().parent / "v1" / "session.jsonl"


def story() -> tuple[e.Event, ...]:
    """Every kind of event at least once, in an order that the rules could have written."""
    own = e.ProposedIdea("i4", replace(b.idea_text(4), key="", predicted=None), "k1", ENGINEER, 1)
    unbounded = replace(b.measurement(0.9, depth="screen"), speedup={"eager": Interval(0.9, 0.0, math.inf)}, corroborated=False)
    return (
        replace(b.opened(mode="ask", source="openai:gpt-test"), forked_from="softmax-2026-11-19-1"),
        e.WorkStarted("prepare"),
        b.prepared(),
        e.RoundOpened(0, ()),
        e.WorkStarted("propose:0"),
        b.proposed("i1"),
        e.IdeaSelected("i1"),
        b.drafted("k1"),
        e.IdeaImplemented("i1", ("k1",)),
        b.built("k1"),
        b.verified("k1", 1.0),
        b.measured("k1", 1.0, light=0.27),
        e.IncumbentChanged("k1", "", Succession.FIRST),
        e.RoundClosed(0),
        e.RoundOpened(1, ("k1",)),
        e.IdeasProposed(1, b.proposed("i2", "i3", parent="k1", branch=3).ideas, True, ("Vectorise loads again",)),
        e.IdeasProposed(1, (own,), False),
        e.IdeaEdited("i2", replace(b.idea_text(2), title="Fuse both passes — µs matter", predicted=1.75), "k1", 2),
        e.IdeaSelected("i2"),
        e.IdeaRejected("i3", "needs a scratch buffer of 2 GiB"),
        e.IdeaParked("i4"),
        e.InstructionsChanged("Prefer fewer registers.\nNo inline assembly."),
        b.drafted("k2", idea="i2", parent="k1", round_number=1, author=b.MODEL, tunables={"BLOCK": 256, "UNROLL": 4}),
        b.drafted("k3", idea="i2", parent="k1", round_number=1, author=b.MODEL),
        e.IdeaImplemented("i2", ("k2", "k3"), "asked for 2"),
        e.AttemptFailed("k2", 0, b.failure(), 0.25),
        e.AttemptRevised("k2", 1, b.digest("revised source of k2")),
        replace(b.built("k2"), instructions={"fma": 64, "total": 812, "ymm": 240}),
        e.KernelVerified("k2", b.verification(), unbounded, 0.5),
        e.KernelMeasured("k2", b.measurement(2.0, light=0.54), 2.5),
        e.WorkStarted("race:k2:k1:0"),
        e.KernelRaced("k2", "k1", RaceOutcome.UNDECIDED, b.interval(1.01), 0, 3, 18, b.digest("race"), "cold caches", 1.5),
        e.RaceAsked("k2", "k1"),
        e.KernelRaced("k2", "k1", RaceOutcome.FASTER, b.interval(1.9), 1, 6, 36, b.digest("race"), "", 3.0),
        e.IncumbentChanged("k2", "k1", Succession.RACED),
        e.KernelFailed("k3", b.failure(FailureKind.MISMATCH), 0.5),
        b.drafted("k4", idea="i2", parent="k2", round_number=1, author=ENGINEER, seed=True),
        e.KernelCancelled("k4", "cancelled by hand"),
        e.KernelPinned("k1"),
        e.KernelPinned("k2"),
        e.KernelUnpinned("k1"),
        e.BranchPruned("k3", "dead end"),
        e.BranchPruned("k4", ""),
        e.BranchReopened("k4"),
        e.NoteAdded("k2", "bound by memory now"),
        e.NoteAdded("", "halfway"),
        e.ModeChanged("ask:30"),
        e.LimitsChanged(Limits(rounds=None, seconds=600.0, kernels=40, plateau=None, light=0.9)),
        e.RoundClosed(1),
        e.SessionClosed("closed by hand"),
        e.SessionReopened(),
        e.WorkStarted("propose:2"),
        e.WorkFailed("propose:2", "the source did not answer within 120 s"),
        e.WorkStarted("propose:2"),
        e.SessionResumed(("propose:2",), "set a torn last line of 40 bytes aside as journal.torn-1"),
        e.KernelReopened("k2", "the session moved to another device"),
        b.prepared(name="another machine"),
        e.IdeasReordered(("i4", "i2")),
        e.KernelAttached("i4", "k2"),
        e.KernelAttached("i4", "k1"),
        e.KernelDetached("i4", "k1"),
        e.CallStarted("c1", "propose:2", CallRole.IDEAS, "openai:gpt-test", b.digest("prompt"), 9000),
        e.CallAnswered("c1", b.digest("reply"), Usage(5200, 1024, 800), 0.0125, "length", 3.5),
        e.CallFailed("c1", "the reply is cut short", Usage(0, 0, 0)),
        e.CallStarted("c2", "propose:2", CallRole.IDEAS, "paste", b.digest("prompt")),
        e.CallFailed("c2", "cancelled by hand: no time", cancelled=True),
        e.WorkFailed("propose:2", "c2 was cancelled by hand: no time", called_off=True),
        e.BudgetReached("propose:2", "the next call could pass 15,000 tokens"),
        e.PausesChanged(Pauses(round=4, usd=5.0)),
        e.SessionPaused("paused by hand"),
        e.SessionContinued(Pauses(usd=5.0)),
        e.KernelQuarantined("k3", ("faster than the speed of light",), b.verification(), b.measurement(9.0), 1.5),
        e.KernelAccepted("k3", "counted the bytes again"),
        e.KernelSanitized("k1", 0, ("address", "undefined"), (), "", b.digest("clean"), 2.5),
        e.KernelProfiled("k1", b.profile()),
        e.ModelsChanged(
            ModelSettings(
                "anthropic:claude-opus-5=2,vllm:qwen=1",
                "openai:gpt-6-sol",
                (ModelServer("vllm", "http://localhost:8000/v1", "VLLM_KEY", "chat"),),
                {"all": CallOptions("high"), "code": CallOptions("", 0.2, 48_000, 900.0)},
                7200.0,
                8,
            )
        ),
        e.UnknownEvent("llm.called", {"tokens": 812, "usd": 0.004, "by": {"name": "openai:gpt-test"}}),
        e.CommandAnswered("00001770000000000000-4711-0badcafe", "PinKernel", False, "unknown kernel 'k9'", 0, 4711),
        e.KernelMatched("k4", "k1"),
        e.NoteAdded("k4", "same code"),
        e.BranchPruned("k2", "by mistake"),
        e.DecisionUndone(80, "pruning of k2"),
        e.WorkerJoined("cuda:1", b.device(), "node7", ("torch 2.12 there, 2.13 here",)),
        e.BuilderJoined("node7/builder:0", "node7", ("nvcc 12.8 there, 13.0 here",)),
        e.WorkerPrepared("cuda:1", {"eager": Interval(900.0, 890.0, 910.0)}, Interval(1.0, 0.99, 1.01)),
        e.WorkAssigned("verify:k4:0", "cuda:1", 1980, 54),
        e.WorkRequeued("verify:k4:0", "cuda:1"),
        e.WorkerLost("cuda:1", "its process ended"),
        e.TuningAsked("k1"),
        e.KernelTuned("k1", 0, (WorkloadTuning("small", {"BLOCK": 512}, b.interval(1.25)),), 12, "", 31.5),
        replace(
            b.drafted("k5", idea="i2", parent="k1", round_number=1, author=ENGINE),
            members=("k1",),
            choices=(WorkloadChoice("small", "k1", {"BLOCK": 512}),),
        ),
        e.KernelCancelled("k5", "by hand"),
        e.KernelSustained("k1", 0, b.sustained(1.1), "", 4.5, "cuda:1"),
        e.KernelRaced("k1", "k4", RaceOutcome.FASTER, b.interval(1.2), 0, 3, 9000, back_to_back=True),
        e.WorkRetried(("propose:2",)),
    )


def lines() -> bytes:
    """The journal's bytes: one event every 1.5 s, every third by the engineer."""
    entries = (e.Entry(n, b.START + 1.5 * n, ENGINEER if n % 3 == 2 else ENGINE, event) for n, event in enumerate(story()))
    return b"".join(codec.encode(entry) + b"\n" for entry in entries)


def digest(journal: bytes) -> str:
    """Digest of the state that a journal folds to."""
    return state_digest(advance(SessionState(), (codec.decode(line) for line in journal.splitlines())))


if __name__ == "__main__":
    if "--digest" in sys.argv:
        sys.stdout.write(digest(GOLDEN.read_bytes()) + "\n")
    else:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_bytes(lines())
