"""Process pairs: runners of the judged kernels beside the baselines', until no further pair is owed. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from engine.domain import suite
from engine.trial.judge.failures import blaming
from engine.trial.judge.interleaving import Contestants
from engine.trial.judge.module_weights import ModuleWeights, has_weights
from engine.trial.judge.process_pool import LOAD_S, ProcessPool
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.workload_trial import Pair, Say, TakePair, WorkloadTrial
from engine.trial.protocol import OTHER, Candidate

_Turn = Callable[[WorkloadTrial], AbstractContextManager[None]]


class ProcessPairs:
    """Takes the process pairs of one judge. Raises TrialFailed."""

    def __init__(
        self, trials: Sequence[WorkloadTrial], pool: ProcessPool, weights: ModuleWeights, bounds: tuple[int, int], turn: _Turn
    ) -> None:
        """``bounds``: fewest and most pairs of a measurement; ``turn``: work on one workload."""
        self._trials = trials
        self._pool = pool
        self._weights = weights
        self._bounds = bounds
        self._turn = turn
        self._to_end = ExitStack()

    def take(
        self, judged: Mapping[str, Candidate], say: Say, pairs: list[list[Pair]], take: TakePair[Pair],
        owed: Callable[[], frozenset[int]], bounds: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        """Add process pairs, by workload, until none is owed: a pair of processes serves all workloads that it is owed on."""
        least, most = bounds or self._bounds
        self._trials[0].bed()
        if not pairs[0]:
            self._pool.discard_prestarted()
        with ExitStack() as stack:
            waiting: list[dict[str, RunnerClient]] = []
            done, places = len(pairs[0]), frozenset(range(len(pairs)))
            while places and done < most:
                if not waiting:
                    if bounds is not None or not self._pool.keeps_processes:
                        stack.close()  # a long race must not accumulate processes on the device
                    count = self._at_a_time(min(least, self._bounds[0]) - done, raced=bounds is not None)
                    waiting = self._start_runners(stack, judged, range(done, done + count), min(places))
                done += 1
                say(f"process pair {done} of {most}{suite.among([trial.name for trial in self._trials], places)}")
                self._run_suite(waiting.pop(0), judged, pairs, take, places)
                if not waiting:
                    self._pool.end_pair()
                if done >= least:
                    places = owed()
            self._to_end = stack.pop_all()

    def _at_a_time(self, lacking: int, *, raced: bool) -> int:
        """Pairs whose processes are started together; so many are ``lacking`` at least."""
        if self._pool.keeps_processes:
            return max(lacking, 2)
        return 1 if raced else max(1, min(lacking, self._pool.pairs_together))

    def _run_suite(
        self, runners: Mapping[str, RunnerClient], judged: Mapping[str, Candidate], pairs: list[list[Pair]],
        take: TakePair[Pair], places: frozenset[int],
    ) -> None:  # fmt: skip
        """One process pair on the workloads at these places, in the suite's order."""
        built = {name: one.each() for name, one in judged.items()}
        contracts = {name: one.contract for name, one in judged.items()}
        for place in sorted(places):
            trial, own = self._trials[place], pairs[place]
            with self._turn(trial):
                bed = trial.bed()
                if any(runner.loaded_for is not bed for runner in runners.values()):
                    self._weights.renew(bed, *judged.values())
                    for name, runner in runners.items():
                        with blaming(name):
                            trial.load(runner, built[name][place])
                baselines = {} if OTHER in judged else trial.baselines.runners(bed, len(own))
                contest = Contestants(runners, baselines, self._pool.null_runners(bed, contracts), contracts)
                self._pool.stand_by()
                own.append(take(trial, contest, own))

    def end_processes(self) -> None:
        """End those that were measured last."""
        self._to_end.close()

    def _start_runners(
        self, stack: ExitStack, judged: Mapping[str, Candidate], numbers: Sequence[int], place: int
    ) -> list[dict[str, RunnerClient]]:
        """Fresh runners of the judged kernels for the pairs of these numbers, with the workload at ``place`` loaded.

        They start in parallel, and the baselines' with them.
        """
        self._settle_weights(judged)
        trial = self._trials[place]
        bed = trial.bed()
        self._weights.renew(bed, *judged.values())
        rows = [
            {
                name: stack.enter_context(self._pool.kernel(judged[name].contract, rival=name == OTHER, fresh=OTHER in judged))
                for name in judged
            }
            for _ in numbers
        ]
        with self._turn(trial):
            for row in rows:
                for name, runner in row.items():
                    with blaming(name):
                        built = judged[name].each()[place]
                        self._pool.load_kernel(runner, bed, built, built.built)
            bed.draw_weights()
            for number in () if OTHER in judged else numbers:
                trial.baselines.runners(bed, number)
            for row in rows:
                for name, runner in row.items():
                    with blaming(name):
                        runner.wait_ready(LOAD_S)
        return rows

    def _settle_weights(self, judged: Mapping[str, Candidate]) -> None:
        """Decide on the weights of modules that were not verified here."""
        for name, candidate in judged.items():
            if self._weights.knows(candidate) or not has_weights(self._trials[0].signature):
                continue
            with blaming(name), self._pool.kernel(candidate.contract, rival=name == OTHER) as runner:
                self._trials[0].settle_weights(runner, candidate)
