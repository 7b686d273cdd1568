"""``espalier.evaluate`` and ``espalier eval``: one kernel, one verdict, without a session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from engine.domain import regimes
from engine.domain import work as w
from engine.domain.corroboration import MEASURED, NOT_CORROBORATED, QUARANTINED
from engine.domain.errors import EspalierError, KernelCodeError
from engine.domain.model import Device, Dialect, Problem, Signature
from engine.domain.preparation import Preparation
from engine.domain.settings import check_choices
from engine.problem import catalog, header
from engine.report.text import verdict as v
from engine.report.text.head_to_head import HeadToHead, head_to_head
from engine.report.text.verdict import Verdict
from engine.session import trust
from engine.session.devices import default_workload
from engine.session.ports import Say
from engine.session.seeds import Seed, check_dialect, device_for, kernel_spec, read_kernel, seed_of
from engine.session.workbench import KernelTrial, Workbench, open_workbench
from engine.toolchain import tunables as tuning
from engine.toolchain.kernel_build import choices
from engine.toolchain.kernel_file import KernelCode, classify
from engine.trial.bench import Assignment, KernelSpec

T = TypeVar("T")


def code(text: str, name: str) -> KernelCode:
    """A kernel's text as a kernel, named like a file: the suffix and the text decide its dialect and contract.

    Raises KernelCodeError if it fits no contract.
    """
    return KernelCode(text, *classify(text, name), name)


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """A kernel to evaluate, and how; made by ``request``."""

    assignment: Assignment
    name: str
    """The kernel's name in the verdict."""
    seed: Seed
    other_name: str = ""
    other: Seed | None = None
    """A kernel to race against."""
    variants: int = 1
    """Combinations of the tunables to measure; 1 for the seed's values alone."""
    regime: str = regimes.AUTO
    """Which regime decides: one of ``regimes.CHOICES``."""
    accept_unverifiable: bool = False
    asks_for_values: bool = False
    """Whether values of tunables were given: no others are taken instead."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of tunables with its verdict."""

    tunables: Mapping[str, int]
    verdict: Verdict
    trial: KernelTrial


Tell = Callable[[Variant, Sequence[Mapping[str, int]]], None]
"""Receives a variant with its verdict, and the tunables of all variants of its kernel."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The verdicts of one kernel."""

    best: Variant
    preparation: Preparation
    variants: tuple[Variant, ...] = ()
    """All combinations that were tried, if more than one was asked for."""
    against: HeadToHead | None = None
    trouble: str = ""
    """Why the other kernel was not compared."""
    taken: Mapping[str, int] | None = None
    """The values that were taken because a requirement forbids the defaults."""

    @property
    def verdict(self) -> Verdict:
        return self.best.verdict


def evaluate(
    problem: str | Path | Problem,
    kernel: str | Path | KernelCode,
    *,
    device: str | None = None,
    workload: str | None = None,
    suite: str | None = None,
    tolerance: str = "class",
    baselines: str | Sequence[str] = ("eager",),
    tunables: Mapping[str, int] | None = None,
    cold: bool = True,
    fresh: bool = False,
    regime: str = regimes.AUTO,
    accept_unverifiable: bool = False,
    say: Say = lambda text: None,
) -> Verdict:
    """Build, verify and measure one kernel, as ``espalier eval`` does. Blocks until it is done, in a notebook too.

    Args:
        problem: a shipped name, a folder, or a KernelBench-format file.
        kernel: a file, or ``espalier.code(text, name)``.
        device: ``cpu`` or ``cuda:N``; by default the first device that runs the kernel's dialect.
        workload: by default ``small`` on a CPU, ``full`` on a GPU.
        suite: judge on the workloads of this suite together instead, by geometric mean.
        baselines: the first one ranks.
        tunables: values of the kernel's tunables; the others keep their defaults.
        cold: measure with cold caches.
        fresh: calibrate and measure the baselines again, instead of using what was kept for up to 7 days.
        regime: which decides, ``single``, ``sustained``, or ``auto``: sustained on a GPU where operations bind. Both are
            measured, on a CPU only where sustained decides.
        accept_unverifiable: go on where a trivial model passes the correctness check.
        say: receives progress, one line at a time.

    Raises:
        EspalierError: bad input; UntrustedError for a reference that would run outside a sandbox and was not allowed.
    """
    asked = problem if isinstance(problem, Problem) else catalog.find(str(problem))
    code = kernel if isinstance(kernel, KernelCode) else read_kernel(Path(kernel), asked)
    wanted = request(
        asked, code, device=device, workload=workload, suite=suite, tolerance=tolerance, baselines=baselines, tunables=tunables,
        cold=cold, fresh=fresh, regime=regime, accept_unverifiable=accept_unverifiable,
    )  # fmt: skip
    return run_blocking(lambda: evaluate_here(wanted, say)).verdict


def request(
    problem: Problem,
    kernel: KernelCode,
    *,
    name: str = "",
    device: str | None = None,
    workload: str | None = None,
    suite: str | None = None,
    tolerance: str = "class",
    baselines: str | Sequence[str] = ("eager",),
    tunables: Mapping[str, int] | None = None,
    cold: bool = True,
    fresh: bool = False,
    variants: int = 1,
    other: KernelCode | None = None,
    other_name: str = "",
    regime: str = regimes.AUTO,
    accept_unverifiable: bool = False,
) -> EvaluationRequest:
    """What ``evaluate_here`` and ``evaluate_on`` take; see ``evaluate``. Raises EspalierError for what cannot be evaluated."""
    trust.require_problem(problem)
    if regime not in regimes.CHOICES:
        raise EspalierError(f"unknown regime {regime!r}: choose {', '.join(regimes.CHOICES)}")
    check_choices(tolerance, named := (baselines,) if isinstance(baselines, str) else tuple(baselines))
    seed = seed_of(kernel, tunables or {})
    second = seed_of(other, {}) if other is not None else None
    kernels = [one.kernel for one in (seed, second) if one is not None]
    label = device_for(kernels, device or _default_device(kernel))
    for one in kernels:
        check_dialect(one, label)
    chosen, *rest = catalog.workloads_for(problem, workload or "", suite or "", default_workload(label))
    ranking, *others = named
    assignment = Assignment(
        problem, chosen, label, tolerance, ranking, tuple(others), cold, fresh=fresh, prepared=True,
        rest=tuple(rest), suite=suite or "", contract=seed.kernel.contract,
    )  # fmt: skip
    shown = name or kernel.name
    return EvaluationRequest(
        assignment, shown, seed, other_name, second, variants, regime, accept_unverifiable, asks_for_values=bool(tunables)
    )


def _default_device(kernel: KernelCode) -> str | None:
    return {Dialect.CPP: "cpu", Dialect.CUDA: "cuda:0", Dialect.TRITON: "cuda:0"}.get(kernel.dialect)


async def evaluate_here(wanted: EvaluationRequest, say: Say) -> Evaluation:
    """Evaluate one kernel in the running event loop. Cancelling it ends the trial. Raises EspalierError."""
    async with bench_for(wanted, say) as bench:
        return await evaluate_on(bench, wanted)


def bench_for(wanted: EvaluationRequest, say: Say) -> AbstractAsyncContextManager[Workbench]:
    """A bench for this kernel, and for others on the same assignment; closed on exit. Raises EspalierError."""
    ahead = partial(_kernels_of, wanted)
    return open_workbench(wanted.assignment, say, accept_unverifiable=wanted.accept_unverifiable, ahead=ahead)


def build_ahead(bench: Workbench, requests: Iterable[EvaluationRequest]) -> None:
    """Build all kernels of these requests in their order, while others are judged. Errors are raised by ``evaluate_on``."""
    for wanted in requests:
        bench.bench.build_ahead(_kernels_of(wanted, bench.device, bench.signature))


def _kernels_of(wanted: EvaluationRequest, device: Device, signature: Signature) -> Sequence[KernelSpec]:
    """The kernel with each choice of its tunables; none where these are wrong."""
    with suppress(EspalierError):
        return [kernel_spec(wanted.seed.kernel, chosen) for chosen in _tunable_choices(wanted, device, signature)]
    return ()


async def evaluate_on(bench: Workbench, wanted: EvaluationRequest, tell: Tell = lambda found, of: None) -> Evaluation:
    """Evaluate one kernel on a bench that may serve several, with one preparation. Raises EspalierError.

    ``tell`` receives each of several variants once it has its verdict, and the tunables of all.
    """
    build_ahead(bench, [wanted])
    tried: list[Variant] = []
    every = _tunable_choices(wanted, bench.device, bench.signature)
    taken = every[0] if wanted.variants == 1 and every != [dict(wanted.seed.tunables)] else None
    for chosen in every:
        trial = await bench.attempt(kernel_spec(wanted.seed.kernel, chosen))
        tried.append(Variant(chosen, _verdict(wanted, bench, trial), trial))
        if len(every) > 1:
            tell(tried[-1], every)
    best = min(tried, key=lambda one: _rank(one.verdict))
    if wanted.regime != regimes.Regime.SINGLE and regimes.wants_sustained(wanted.regime, bench.device.kind):
        both = await bench.sustain(kernel_spec(wanted.seed.kernel, best.tunables), best.trial)
        tried[tried.index(best)] = best = Variant(best.tunables, _verdict(wanted, bench, both), both)
    against, trouble = None, ""
    if wanted.other is not None and best.verdict.status in (MEASURED, NOT_CORROBORATED):
        compared = await _compare(bench, kernel_spec(wanted.seed.kernel, best.tunables), wanted)
        if isinstance(compared, HeadToHead):
            against = compared
        else:
            trouble = compared
    return Evaluation(best, bench.preparation, tuple(tried) if wanted.variants > 1 else (), against, trouble, taken)


def _tunable_choices(wanted: EvaluationRequest, device: Device, signature: Signature) -> Sequence[dict[str, int]]:
    """The values of the tunables to evaluate: of a single variant those that were asked for, else the defaults.

    Where a requirement forbids the defaults, the nearest allowed values. Raises KernelCodeError if it forbids those asked for.
    """
    kernel, asked = wanted.seed.kernel, dict(wanted.seed.tunables)
    names = header.plan_names(signature, device.units)
    try:
        declared = tuning.parse_tunables(kernel.text, kernel.dialect)
        requires = tuning.parse_requires(kernel.text, kernel.dialect)
        if wanted.variants == 1:
            unmet = tuning.first_unmet(requires, names, asked)
            if unmet is None:
                return [asked]
            if wanted.asks_for_values:
                raise KernelCodeError(f"{tuning.rule_text(unmet)} forbids {_values(asked)}: choose others with --tune")
        return [dict(chosen) for chosen in tuning.variants(declared, requires, names, wanted.variants, 0)]
    except KernelCodeError as error:
        raise KernelCodeError(f"{kernel.name}: {error}") from error


def _values(chosen: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in chosen.items())


_ORDER = (MEASURED, NOT_CORROBORATED, QUARANTINED)


def _rank(verdict: Verdict) -> tuple[int, float]:
    """The sort key of variants: whatever a doubted one claims, it is after those that are measured; failures are last."""
    place = _ORDER.index(verdict.status) if verdict.status in _ORDER else len(_ORDER)
    return place, verdict.time_us.median if verdict.time_us is not None else float("inf")


def _deciding(wanted: EvaluationRequest, bench: Workbench) -> regimes.Regime:
    return regimes.deciding(wanted.regime, bench.preparation.bound, bench.device.kind)


def _verdict(wanted: EvaluationRequest, bench: Workbench, tried: KernelTrial) -> Verdict:
    a, kernel = wanted.assignment, wanted.seed.kernel
    subject = v.VerdictSubject(
        a.problem.name, wanted.name, kernel.dialect, kernel.contract, bench.device, a.workload.name,
        bench.preparation.sandbox, a.suite, a.baseline, _deciding(wanted, bench),
    )  # fmt: skip
    seconds = v.StageSeconds(tried.build_s, tried.verify_s, tried.measure_s, tried.sustain_s, tried.wait_s)
    chosen = choices(kernel, a.workloads) if a.suite else ()
    found = v.verdict(subject, tried.verification, tried.final, seconds)
    return replace(found, included=tried.included, limit=tried.limit, choices=chosen)


async def _compare(bench: Workbench, first: KernelSpec, wanted: EvaluationRequest) -> HeadToHead | str:
    """The comparison with another verified kernel in the deciding regime, or why there is none."""
    seed, name = wanted.other, wanted.other_name
    assert seed is not None
    other = kernel_spec(seed.kernel, seed.tunables)
    checked = await bench.bench.try_verify(other, bench.say)
    if not isinstance(checked, w.Verified):
        reason = checked.failure.reason if isinstance(checked, w.Failed) else checked.reason
        return f"{name} cannot be compared: {reason}"
    regime = _deciding(wanted, bench)
    measured = await bench.bench.versus(first, other, bench.say, regime=regime)
    if isinstance(measured, w.Failed):
        return f"the comparison with {name} failed: {measured.failure.reason}"
    return head_to_head(name, measured.measurement, measured.regime)


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end. Where an event loop already runs in this thread, as in a notebook, another thread runs it.

    An interrupt, as of a notebook's cell, cancels it and waits until it has cleaned up.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="espalier")
    thread.start()
    running = asyncio.run_coroutine_threadsafe(work(), loop)
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    """Cancel what runs in this loop, and wait for its clean-up."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
