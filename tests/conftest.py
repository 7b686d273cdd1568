"""How tests run: which share a process, which may rerun, and the number of examples of a property."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from support.places import APP_FOLDERS

from engine.journal import store
from engine.trial.lease import LEASES

TESTS = Path(__file__).parent
MEASURING = (
    "api/test_mcp_search.py",
    "cli/test_cli_model_session.py",
    "cli/test_cli_real.py",
    "contracts/test_trial_bench.py",
    "docs/test_real_commands.py",
    "exploits/test_exploits.py",
    "gpu",
    "trial/test_baselines.py",
    "trial/test_others_problems.py",
    "trial/test_suite_trial.py",
)
"""Folders and files whose tests time kernels. They run one at a time and alone (``-m measuring``), because other tests would
disturb their times; a plain ``pytest`` leaves them out."""
CAUGHT_UNDER_LOAD = "test_candidate_is_caught"
"""Judges exploits, which must be caught on a busy machine too: beside the others, and not among those that CI runs alone."""
BESIDE_A_CLOCK = ("api", "cli", "docs/test_real_commands.py", "faults", "fleet", "ideas/models", "session", "trial", "tui")
"""Folders whose tests wait for a screen, a server or another process. A busy machine can be late;
a bug fails every time."""
ONCE = ("cli/test_cli_real.py", "trial/test_sandbox.py", "trial/test_candidates.py")
"""Within those, what runs once, as exploits and contracts do: a rerun could hide an escape."""
SPREAD = ("tui",)
"""Folders whose tests take seconds each and go to whichever worker is free; elsewhere a file stays on one."""
EVERY_RUN = ("fleet/test_ray.py", "packaging", "sandbox")
"""Folders and files whose slow tests CI runs each time. All other slow tests take turns: each day one share of them runs
(``ESPALIER_SHARE``, e.g. ``0/7``)."""
BY_HAND = ("tui/test_new_user.py",)
"""What CI leaves out: twelve sessions in a real terminal, about a minute each on an idle machine."""
LONG = (
    "report/test_ablation.py",
    "tui/test_terminal_end_to_end.py",
    "exploits",
    "faults",
    "fleet/test_ray.py",
    "api/test_many_askers.py",
    "codegen/test_naive_kernels.py",
    "trial",
)
"""Folders and files that begin first, so that no worker is left alone with a long test at the end."""
SHARE = "ESPALIER_SHARE"
RERUNS = 2
SHARED_SCOPES = frozenset({"module", "class", "package"})

for profile, examples in {"default": 30, "nightly": 10_000}.items():
    settings.register_profile(profile, max_examples=examples, deadline=None)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a run starts hundreds of processes, and each would compile the program
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts background jobs; what a test starts would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For the whole suite one more than there are cores, for many tests wait; none for named files, which run sooner so."""
    return len(os.sched_getaffinity(0)) + 1 if config.args_source is pytest.Config.ArgsSource.TESTPATHS else 0


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group what must not run side by side or shares a fixture, and mark what may run again."""
    if gone := [
        place for place in (*MEASURING, *BESIDE_A_CLOCK, *ONCE, *EVERY_RUN, *BY_HAND, *LONG) if not (TESTS / place).exists()
    ]:
        raise pytest.UsageError(f"tests/conftest.py names what is not there: {', '.join(gone)}")
    _leave_out_other_shares(config, items)
    items.sort(key=lambda item: next((n for n, place in enumerate(LONG) if _lies_in(item.path, (place,))), len(LONG)))
    for item in items:
        if _lies_in(item.path, MEASURING):
            times_kernels = not item.name.startswith(CAUGHT_UNDER_LOAD)
            item.add_marker(pytest.mark.xdist_group("measuring" if times_kernels else "caught"))
            if times_kernels:
                item.add_marker(pytest.mark.measuring)
        elif _shares_a_fixture(item) or not _lies_in(item.path, SPREAD):  # few groups are scheduled faster than single tests
            item.add_marker(pytest.mark.xdist_group(_name(item.path)))
        if _lies_in(item.path, BESIDE_A_CLOCK) and not _lies_in(item.path, ONCE):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))


def _leave_out_other_shares(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the slow tests that belong to another share. Without ``ESPALIER_SHARE`` all run.

    Neighbours belong to different shares: they take about as long as each other, and every share then takes about as long.
    """
    if not (share := os.environ.get(SHARE)):
        return
    number, _, shares = share.partition("/")
    if not (number.isdecimal() and shares.isdecimal() and int(number) < int(shares)):
        raise pytest.UsageError(f"{SHARE} is {share!r}: give NUMBER/SHARES, e.g. 0/7")

    def takes_turns(item: pytest.Item) -> bool:
        return item.get_closest_marker("slow") is not None and not _lies_in(item.path, EVERY_RUN)

    turns = enumerate(filter(takes_turns, items))
    others = {item for place, item in turns if place % int(shares) != int(number)}
    others |= {item for item in items if _lies_in(item.path, BY_HAND)}
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=list(others))


def pytest_collection_finish() -> None:
    """Leave what was collected out of each garbage collection: there are 15,000 tests."""
    gc.collect()
    gc.freeze()


@cache
def _name(path: Path) -> str:
    return str(path.relative_to(TESTS))


@cache
def _lies_in(path: Path, places: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(TESTS / place) for place in places)


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Whether a fixture of the test's file or class serves several tests: it is made once where they run in one process."""
    found = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    return any(fixture.scope in SHARED_SCOPES for fixtures in found for fixture in fixtures)


@pytest.fixture(scope="session", autouse=True)
def _one_thread_for_each_worker() -> None:
    """Tensors of the tests take no core from other workers. Processes that a test starts keep all threads."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests wait neither for other workers nor for the user's own evaluations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LEASES, str(tmp_path_factory.mktemp("leases")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_app_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The apps of all tests write below the run's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(APP_FOLDERS, str(tmp_path_factory.mktemp("apps")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_shipped_sessions() -> Iterator[None]:
    """Session lists contain the sessions of the test, not those of this checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "shipped_root", lambda: None)
        yield
