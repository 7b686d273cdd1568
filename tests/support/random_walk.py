"""A session driven at random: any command, any order of work, any result, from a seed.

What a person may ask and what a bench may answer is drawn without regard to sense; only the shapes are right. ``stray`` turns
the nonsense off where two walks must agree.
"""

from __future__ import annotations

import random
from dataclasses import replace

from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import model as m
from engine.domain import queries, rules
from engine.domain import work as w
from engine.domain.errors import CommandRejected
from engine.domain.profile import Profile
from engine.domain.settings import Limits, Pauses
from engine.domain.state import SessionState, Stage


def any_settings(dice: random.Random) -> dict[str, object]:
    limits = Limits(
        rounds=dice.choice([None, 1, 3, 5, 5]),
        seconds=dice.choice([None, None, 60.0, 300.0]),
        kernels=dice.choice([None, None, None, 2, 20]),
        plateau=dice.choice([None, 0, 3]),
        light=dice.choice([None, None, 0.95]),
    )
    return {
        "strategy": dice.choice(["branching", "sequential", "adaptive"]),
        "ideas": dice.randint(1, 4),
        "branch": dice.randint(1, 3),
        "beam": dice.randint(1, 3),
        "repairs": dice.randint(0, 2),
        "accept_unverifiable": dice.random() < 0.5,
        "limits": limits if dice.random() < 0.8 else replace(Limits(), rounds=2),
    }


def any_command(dice: random.Random, state: SessionState) -> c.Command:
    """Any command on kernels and ideas that mostly exist."""
    kernel = dice.choice([*state.kernels, "k0", "k1"])
    idea = dice.choice([*state.ideas, "i0", "i1"])
    parent = dice.choice([None, None, kernel])
    text = replace(b.idea_text(dice.randint(1, 9)), predicted=dice.choice([None, 1.5, -1.0]))
    number = str(dice.randint(1, 10**6))
    seed = c.SeedKernel(
        f"seed{number}.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest(number), {}, parent, dice.choice([None, idea])
    )
    limits = Limits(rounds=dice.choice([None, 1, 2, 3, 9]), kernels=dice.choice([None, 30]))
    pauses = Pauses(dice.choice([None, 500]), dice.choice([None, 0.01]), dice.choice([None, 1, 2, 3]))
    made: tuple[c.Command, ...] = (
        c.WriteIdea(text, parent, dice.choice([None, 1, 2, 0, 99]), dice.random() < 0.5),
        c.WriteIdea(text, parent, 1, True, (kernel, "k1")),
        c.ReorderIdeas((idea, dice.choice([*state.ideas, "i0"]))),
        c.ReorderIdeas(tuple(i.id for i in reversed(queries.pending_ideas(state)))),
        *(c.DetachKernel(i.id, k) for i in state.ideas.values() for k in i.materials),
        c.ReorderIdeas(()),
        c.AttachKernel(idea, kernel),
        c.DetachKernel(idea, kernel),
        c.EditIdea(
            idea,
            dice.choice([None, "", "Another title"]),
            None,
            dice.choice([None, "magic"]),
            parent,
            dice.choice([None, 2, 99]),
        ),
        c.SelectIdeas(),
        c.SelectIdeas((idea, idea)),
        c.RejectIdea(idea, "not worth it"),
        c.ParkIdea(idea),
        seed,
        c.PinKernel(kernel),
        c.UnpinKernel(kernel),
        c.PruneBranch(kernel),
        c.ReopenBranch(kernel),
        c.CancelKernel(kernel),
        c.AcceptKernel(kernel, dice.choice(["", "seen it"])),
        *(c.AcceptKernel(k.id, "seen it") for k in state.kernels.values() if k.stage is Stage.QUARANTINED),
        c.DiscardKernel(kernel, dice.choice(["", "a trick"])),
        c.SetPauses(pauses),
        c.PauseSearch(),
        c.ResumeSearch(),
        c.ResumeSearch(),
        c.ResumeSearch(),
        c.CancelCall(dice.choice([*state.calls, "c0"])),
        c.AnswerCall(dice.choice([*state.calls, "c0"]), b.digest("reply")),
        c.Remeasure(kernel),
        c.TuneKernel(kernel),
        c.RaceKernel(kernel, dice.choice([None, None, *state.kernels, "k0"])),
        *(c.RaceKernel(k) for k in (r.kernel for r in state.races[-1:])),
        c.RaceLeaders(dice.choice([0, 1, 3])),
        c.RaceUndecided(),
        c.RecordProfile(kernel, dice.choice([b.profile(), Profile(0, note="no counters here")])),
        c.AddNote(dice.choice(["", kernel, idea, "r0", "r7", "r²", "nothing"]), dice.choice(["words", " "])),
        c.SetMode(dice.choice(["ask", "ask:30", "autopilot", "ask:", "ask:0", "ask:²", "manual"])),
        c.SetLimits(limits),
        c.SetModels(replace(state.models, concurrency=dice.choice([0, 2, 4]), patience=dice.choice([60.0, 3600.0]))),
        c.Instruct("prefer fewer registers"),
        c.UndoDecision(),
        c.UndoDecision(),
        c.EndSession(dice.choice(["", "enough"])),
    )
    return dice.choice(made)


def _of_leader(dice: random.Random, work: w.ReadCounters | w.Sustain | w.Tune, failed: w.Failed) -> list[w.Result]:
    if isinstance(work, w.ReadCounters):
        return [w.Profiled(b.profile()), w.Profiled(Profile(0, note="perf is not installed"))]
    if isinstance(work, w.Tune):
        return [w.Tuned((), dice.choice(["", b.digest("tuned")]), trials=12)]
    times = b.sustained(dice.uniform(0.5, 3.0))
    suspected = w.BackToBack(times, 0.1, evidence=("it reuses results",))
    return [failed, w.BackToBack(None, note="no two calls are alike"), suspected, *[w.BackToBack(times, 0.1)] * 8]


def any_result(dice: random.Random, state: SessionState, work: w.Work) -> w.Result:
    """A result of the right shape: success, every kind of failure, or the engine's own failure."""
    if dice.random() < 0.04:
        return w.Impossible("device lost", called_off=isinstance(work, w.Propose) and dice.random() < 0.5)
    speedup = dice.uniform(0.3, 3.0)
    failed = w.Failed(b.failure(dice.choice(list(m.FailureKind))), 0.1)
    light = dice.choice([None, speedup / 3.1])
    screen = b.measurement(speedup, depth="screen", light=light, corroborated=dice.random() < 0.9)
    suspected = w.Suspected(("faster than light",), b.verification(), replace(screen, corroborated=False), 0.1)
    if isinstance(work, w.Propose | w.Implement | w.Repair) and dice.random() < 0.02:
        return w.Unaffordable("the next call could pass 1,000 tokens")
    match work:
        case w.Prepare():
            return w.Prepared(b.device(), b.preparation(fooled_by=dice.choice([*[""] * 15, "zeros"])))
        case w.Propose():
            texts = (b.idea_text(dice.randint(1, 60)) for _ in range(dice.randint(0, 5)))
            return w.Proposals(
                tuple(w.Proposal(t, dice.choice([None, "k1", "k999"]), dice.choice([b.PLAYBOOK, b.MODEL])) for t in texts)
            )
        case w.Implement():
            names = (dice.randint(1, 40) for _ in range(dice.randint(0, 4)))
            author = dice.choice([b.PLAYBOOK, b.MODEL])
            values = dice.choice([{}, {"BLOCK": 128}])
            drafts = (
                w.StoredDraft(f"{n}.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest(str(n)), author, values) for n in names
            )
            return w.Drafts(tuple(drafts))
        case w.Build():
            machine_code = dice.choice(["", *map(b.digest, "abcdef")])
            return failed if dice.random() < 0.2 else w.Built(b.digest("artefact"), 0.1, machine_code=machine_code)
        case w.Verify() | w.Measure() if dice.random() < 0.05:
            return suspected
        case w.Verify():
            return failed if dice.random() < 0.2 else w.Verified(b.verification(), screen, 0.1)
        case w.Measure():
            precise = replace(screen, depth="precise", processes=4)
            return failed if dice.random() < 0.2 else w.Measured(precise, 0.1)
        case w.Repair():
            return failed if dice.random() < 0.3 else w.Repaired(b.digest(str(dice.random())))
        case w.Sanitize():
            return w.Sanitized(("address",), dice.choice([(), (), ("heap-buffer-overflow",)]), log=b.digest("asan"))
        case w.ReadCounters() | w.Sustain() | w.Tune():
            return dice.choice(_of_leader(dice, work, failed))
        case w.Race():
            if dice.random() < 0.1:
                return replace(failed, kernel=dice.choice([work.kernel, work.against]))
            raced = b.interval(dice.choice([dice.uniform(0.5, 2.0), dice.uniform(0.99, 1.01)]), dice.choice([0.005, 0.05]))
            return w.Raced(raced, 3, 18, dice.random() < 0.9, b.digest("race"), 0.1)


class RandomWalk(b.Walk):
    """Several concurrent work items, commands between any two steps, processes that die."""

    def __init__(self, seed: int) -> None:
        super().__init__(tick=random.Random(seed).choice([0.125, 1.0, 10.0]))
        self.dice = random.Random(seed)
        self.in_hand: list[w.Work] = []
        self.commands = 60
        self.refusals: list[str] = []
        opened = b.opened(mode=self.dice.choice(["ask", "autopilot"]), **any_settings(self.dice))
        if self.dice.random() < 0.5:
            problem = replace(opened.problem, suites={"both": ("full", "small")})
            opened = replace(opened, problem=problem, settings=replace(opened.settings, suite="both"))
        regime = random.Random(-seed - 1).choice(["", "", "auto", "single", "sustained"])
        self.write((replace(opened, settings=replace(opened.settings, regime=regime)),))

    def step(self) -> bool:
        """One step; False if no work is running or owed."""
        self.settle()
        chance = self.dice.random()
        if self.commands and chance < 0.15:
            self.commands -= 1
            self._ask()
            return True
        if chance > 0.99:
            self._die()
            return True
        hand = {work.key for work in self.in_hand}
        owed = [work for work in rules.next_work(self.state) if work.key not in hand]
        if owed and (chance < 0.6 or not self.in_hand) and len(self.in_hand) < 4:
            self.start(self.dice.choice(owed))
            return True
        if self.in_hand:
            work = self.in_hand.pop(self.dice.randrange(len(self.in_hand)))
            self.finish(work, any_result(self.dice, self.state, work))
            return True
        return False

    def start(self, work: w.Work) -> None:
        super().start(work)
        self.in_hand.append(work)
        if isinstance(work, w.Propose | w.Implement | w.Repair) and self.dice.random() < 0.5:
            self._call(work)

    def _call(self, work: w.Work) -> None:
        """A model call that succeeds, fails, or is unanswered when the process dies."""
        call = f"c{self.state.next_call}"
        model = self.dice.choice(["openai:gpt-test", "paste"])
        self.write((e.CallStarted(call, str(work.key), m.CallRole.IDEAS, model, b.digest("prompt"), 1000),))
        usage = m.Usage(self.dice.randint(0, 900), 0, self.dice.randint(0, 100))
        match self.dice.randrange(3):
            case 0:
                self.write((e.CallAnswered(call, b.digest("reply"), usage, self.dice.choice([None, 0.01])),))
            case 1:
                self.write((e.CallFailed(call, "no answer", usage, self.dice.choice([None, 0.01])),))

    def _ask(self) -> None:
        try:
            self.submit(any_command(self.dice, self.state))
        except CommandRejected as error:
            self.refusals.append(str(error))

    def _die(self) -> None:
        """The process dies with all running work; another one resumes the session."""
        self.in_hand.clear()
        self.write(rules.resume_events(self.state, ""))
        if self.dice.random() < 0.3 and self.state.preparation is not None:
            moved = w.Prepared(b.device("another machine"), b.preparation())
            self.write(rules.record(self.state, w.Prepare(), moved))

    def to_its_end(self, steps: int = 20_000) -> e.Event:
        for _ in range(steps):
            if not self.step() and not self.commands:
                return self.log[-1].event
            if not self.in_hand and self.commands and not rules.next_work(self.state) and not rules.automatic(self.state):
                self.commands -= 1
                self._ask()
        raise AssertionError("the walk never ends")
