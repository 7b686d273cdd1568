"""``espalier.evaluate``: one kernel, one verdict, without a session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from engine.domain.model import Dialect, Problem
from engine.problem import catalog
from engine.report.text import verdict as v
from engine.report.text.verdict import Verdict
from engine.session import trust
from engine.session.devices import checked_device, default_workload
from engine.session.seeds import check_dialect, kernel_spec, seed_of
from engine.session.workbench import open_workbench
from engine.toolchain.kernel_file import KernelCode, classify, read_kernel_file
from engine.trial.bench import Assignment

T = TypeVar("T")
Say = Callable[[str], None]


def code(text: str, name: str) -> KernelCode:
    """A kernel's text as a kernel, named like a file: the suffix and the text decide its dialect and contract.

    Raises KernelCodeError if it fits no contract.
    """
    return KernelCode(text, *classify(text, name), name)


def evaluate(
    problem: str | Path | Problem,
    kernel: str | Path | KernelCode,
    *,
    device: str | None = None,
    workload: str | None = None,
    suite: str | None = None,
    tolerance: str = "class",
    baselines: Sequence[str] = ("eager",),
    tunables: Mapping[str, int] | None = None,
    cold: bool = True,
    fresh: bool = False,
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
        fresh: calibrate and measure baselines again. Default: what was kept, up to 7 days.
        accept_unverifiable: go on where a trivial model passes the correctness check.
        say: receives progress, one line at a time.

    Raises:
        EspalierError: bad input; UntrustedError for a reference that would run outside a sandbox and was not allowed.
    """
    asked = problem if isinstance(problem, Problem) else catalog.find(str(problem))
    code = kernel if isinstance(kernel, KernelCode) else read_kernel_file(Path(kernel))
    return run_blocking(
        lambda: evaluate_here(
            asked, code, device=device, workload=workload, suite=suite, tolerance=tolerance, baselines=baselines,
            tunables=tunables, cold=cold, fresh=fresh, accept_unverifiable=accept_unverifiable, say=say,
        )
    )  # fmt: skip


async def evaluate_here(
    problem: Problem,
    kernel: KernelCode,
    *,
    device: str | None = None,
    workload: str | None = None,
    suite: str | None = None,
    tolerance: str = "class",
    baselines: Sequence[str] = ("eager",),
    tunables: Mapping[str, int] | None = None,
    cold: bool = True,
    fresh: bool = False,
    accept_unverifiable: bool = False,
    say: Say = lambda text: None,
) -> Verdict:
    """Like ``evaluate``, in the running event loop. Cancelling it ends the trial."""
    trust.require_problem(problem)
    seed = seed_of(kernel, tunables or {})
    own = {Dialect.CPP: "cpu", Dialect.CUDA: "cuda:0", Dialect.TRITON: "cuda:0"}.get(kernel.dialect)
    label = checked_device(device or own)
    check_dialect(kernel, label)
    ranking, *others = baselines
    chosen, *rest = catalog.workloads_for(problem, workload or "", suite or "", default_workload(label))
    assignment = Assignment(
        problem, chosen, label, tolerance, ranking, tuple(others), cold, fresh=fresh, prepared=True, rest=tuple(rest),
        suite=suite or "",
    )  # fmt: skip
    async with open_workbench(assignment, say, accept_unverifiable=accept_unverifiable) as bench:
        tried = await bench.attempt(kernel_spec(seed.kernel, seed.tunables))
        subject = v.VerdictSubject(
            assignment.problem.name, seed.kernel.name, seed.kernel.dialect, seed.kernel.contract, bench.device,
            assignment.workload.name, bench.preparation.sandbox, assignment.suite, ranking,
        )  # fmt: skip
        seconds = v.StageSeconds(tried.build_s, tried.verify_s, tried.measure_s, tried.wait_s)
        found = v.verdict(subject, tried.verification, tried.final, seconds)
        return replace(found, included=tried.included, limit=tried.limit)


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
