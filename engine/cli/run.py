"""``espalier run``: start a session on a problem."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from engine.cli import options as o
from engine.cli.conclusion import conclude, interrupted
from engine.cli.drive import ProgressPrinter, drive, run_session, run_to_end
from engine.cli.model_options import changed, model_options
from engine.cli.run_set import check_options, named_problems, run_set
from engine.cli.ui import open_ui
from engine.cli.verbosity import verbosity
from engine.domain.model import Dialect
from engine.domain.settings import BASELINES, LARGEST_COUNT, LARGEST_SOL, STRATEGIES, Limits, Pauses, Settings, default_strategy
from engine.domain.state import SessionState
from engine.ideas.mix import check_models
from engine.problem import catalog
from engine.session.benches import check_fleet
from engine.session.devices import checked_device, default_workload
from engine.session.factory import NewSession, begin
from engine.session.outcome import Outcome
from engine.session.seeds import read_seed

_COUNT = click.IntRange(1, LARGEST_COUNT)
_FEW = click.IntRange(1, 64)

EPILOG = """\b
Proposers: playbook (needs no key); openai:, anthropic:, gemini:, vertex:, azure: and
openrouter:MODEL (keys from OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, VERTEX_API_KEY,
AZURE_OPENAI_API_KEY, OPENROUTER_API_KEY or the keyring); vllm: and ollama:MODEL (local
servers); command:CMD (prompt on its standard input, reply on its standard output); paste
(you carry prompts to any chat window); agent (a coding agent, through `espalier mcp`).
Several share the rounds: --proposer openai:MODEL=2,playbook=1.
A key goes to its provider's own hosts. Another server gets a key only if --server names one.

\b
Examples:
  espalier run softmax
  espalier run my_module.py --headless --rounds 5
  espalier run softmax --proposer openai:MODEL --budget-usd 5

\b
Exit status: 0 done, 1 no verified kernel, 2 bad usage or input, 3 stopped, awaiting you
or a provider (resume with `espalier open`), 4 no kernel whose time is corroborated,
130 interrupted (resume likewise)."""


@click.command(epilog=EPILOG)
@click.argument("problems", type=o.PROBLEM, nargs=-1, required=True, metavar="PROBLEM...")
@click.option("--rounds", type=_COUNT, default=3, show_default=True, metavar="N",
              help="Rounds after the naive port. The adaptive strategy counts K × B kernels as one.")  # fmt: skip
@click.option("--ideas", type=_FEW, default=3, show_default=True, metavar="K", help="Ideas per round.")
@click.option("--branch", type=_FEW, default=3, show_default=True, metavar="B", help="Implementations per idea.")
@click.option("--beam", type=_FEW, default=2, show_default=True, metavar="N", help="Kernels kept as parents of the next round.")
@click.option("--repairs", type=click.IntRange(0, 64), default=2, show_default=True, metavar="N",
              help="Attempts to repair a failing kernel.")  # fmt: skip
@click.option("--strategy", type=o.KnownValue(STRATEGIES), default=None,
              help="adaptive, the default: the session's own measurements decide. branching, the default with --fleet "
              "and for the proposer agent: several ideas per round from the best kernels. sequential: one idea after "
              "the other.")  # fmt: skip
@click.option("--prior", type=o.KnownValue(("sessions", "none")), default="sessions", show_default=True,
              help="What the adaptive strategy starts from: what ideas gained in earlier sessions, or nothing.")  # fmt: skip
@click.option("--proposer", "--source", "source", cls=o.Aliased, type=o.NAME, default="playbook", show_default=True,
              metavar="playbook|PROVIDER:MODEL|paste|agent|command:CMD", help="Where ideas come from; see below.")  # fmt: skip
@click.option("--writer", type=o.NAME, metavar="NAME", help="Who writes the code. Default: the proposer of the idea.")
@click.option(
    "--base-url", type=o.ADDRESS, metavar="URL", help="Short for --server openai=URL, e.g. of llama.cpp or a gateway."
)
@model_options
@click.option("--dialect", type=o.KnownValue([d.value for d in Dialect]), metavar="cuda|cpp|triton|python",
              help="What kernels are written in. Default: cuda on a GPU, cpp on a CPU.")  # fmt: skip
@o.include_option
@o.device_option
@o.fleet_option
@o.workload_option
@o.suite_option
@o.tolerance_option
@click.option("--baseline", type=o.KnownValue(BASELINES), default="eager", show_default=True, metavar="NAME",
              help=f"What speedup is relative to: {', '.join(BASELINES)}.")  # fmt: skip
@click.option("--baselines", type=o.NameList(BASELINES), default=(), metavar="NAME,...", help="Further baselines to measure.")
@click.option("--mode", type=o.ApprovalMode(), metavar="ask|ask:SECONDS|autopilot",
              help="Who approves ideas. Default: ask in the terminal UI, autopilot without.")  # fmt: skip
@click.option(
    "--time",
    "seconds",
    type=o.Duration(),
    metavar="TIME",
    help="Start no new work after this long: 90, 15m or 2h. What runs is finished, and the best kernel is confirmed.",
)
@click.option("--kernels", type=_COUNT, metavar="N", help="Stop at this many kernels.")
@click.option("--plateau", type=_COUNT, default=3, show_default=True, metavar="N",
              help="Stop after this many rounds without a new incumbent.")  # fmt: skip
@click.option("--sol", "light", type=o.OrNone(o.FiniteNumber(0, LARGEST_SOL, min_open=True)), default=Limits().light,
              show_default=True, metavar="F|none", help="Stop at this fraction of the speed of light (SOL).")  # fmt: skip
@click.option("--budget-tokens", type=click.IntRange(1), metavar="N", help="End before exceeding this many model tokens.")
@click.option("--budget-usd", type=o.FiniteNumber(0, min_open=True), metavar="X",
              help="End before exceeding this many dollars.")  # fmt: skip
@click.option("--pause-above-usd", type=o.FiniteNumber(0), metavar="X", help="Pause once more dollars have been spent.")
@click.option("--pause-before-round", type=_COUNT, metavar="N", help="Pause before this round opens.")
@click.option("--session", "folder", type=o.NEW_SESSION, metavar="DIR",
              help="Folder of the new session. Default: a new one in the sessions folder.")  # fmt: skip
@click.option("--seed-kernel", "seeds", type=o.SEED, multiple=True, metavar="FILE|SESSION:KERNEL",
              help="A kernel to start with; repeatable.")  # fmt: skip
@click.option("--random-seed", "--seed", "seed", cls=o.Aliased, type=click.IntRange(0, 2**63 - 1), default=0,
              show_default=True, metavar="N", help="Random seed of the search; inputs are not affected.")  # fmt: skip
@o.hot_option
@o.regime_option
@o.fresh_option
@o.accept_option
@o.plain_option
@o.headless_option
@o.json_option
@verbosity
def run(problems: tuple[str, ...], **given: Any) -> None:
    """Start a session on PROBLEM: a shipped name, a folder, or any KernelBench-format .py file.

    In a terminal it opens the terminal UI. Without one, or with --headless, it runs on autopilot and prints progress
    lines, then the kernel tree.

    Several problems, or a folder of them, share one budget (--kernels, --time, --budget-usd, --budget-tokens). Each has a
    session of its own, headless; the next kernels go where they are expected to gain most. Repeat the command to
    continue, also with a larger budget. Default of --kernels: as many as --rounds rounds on every problem need.
    """
    names = named_problems(problems)
    if len(names) > 1:
        check_options(given)
        typed = click.get_current_context().get_parameter_source("rounds") is ParameterSource.COMMANDLINE
        run_set([_new_session(name, given) for name in names], given, given["rounds"] if typed else None)
        return
    new = _new_session(names[0], given)
    on_screen = replace(new, mode=given["mode"] or "ask")
    if not given["headless"] and not given["as_json"] and open_ui("new", on_screen):
        return
    folder: list[Path] = []

    async def work(printer: ProgressPrinter) -> tuple[SessionState, Outcome]:
        if given["device"] is None and new.device == "cpu":
            printer.step("no GPU found: kernels run on the CPU; `espalier doctor` shows what a GPU needs")
        live = await begin(new, printer.step)
        folder.append(live.folder)
        return await run_session(live, run_to_end, printer)

    try:
        state, outcome = drive(work)
    except KeyboardInterrupt:
        if not folder:
            raise
        raise interrupted(folder[0]) from None
    conclude(state, folder[0], outcome, as_json=given["as_json"])


def _new_session(name: str, given: dict[str, Any]) -> NewSession:
    problem = catalog.find(name)
    device = checked_device(given["device"])
    check_fleet(given["fleet"] or "")
    limits = Limits(
        rounds=given["rounds"], seconds=given["seconds"], kernels=given["kernels"], tokens=given["budget_tokens"],
        usd=given["budget_usd"], plateau=given["plateau"], light=None if given["light"] == "none" else given["light"],
    )  # fmt: skip
    pauses = Pauses(usd=given["pause_above_usd"], round=given["pause_before_round"])
    asked = {"source": given["source"], "writer": given["writer"] or "", "base_url": given["base_url"] or ""}
    models = changed(Settings(**asked).models, given)
    check_models(models)
    catalog.workloads_for(problem, given["workload"] or "", given["suite"] or "", default_workload(device))
    settings = Settings(
        strategy=given["strategy"] or default_strategy(given["source"], given["fleet"] or ""),
        ideas=given["ideas"], branch=given["branch"], beam=given["beam"],
        repairs=given["repairs"], **asked,
        servers=models.servers if given["servers"] else (), options=models.options, patience=models.patience,
        concurrency=models.concurrency, profiling=models.profiling,
        workload=given["workload"] or default_workload(device), suite=given["suite"] or "", dialect=given["dialect"] or "",
        tolerance=given["tolerance"], baseline=given["baseline"],
        others=given["baselines"], cold=not given["hot"], regime=given["regime"],
        seed=given["seed"],
        accept_unverifiable=given["accept_unverifiable"], limits=limits, pauses=pauses,
    )  # fmt: skip
    return NewSession(
        problem, device, settings, given["mode"] or "autopilot", given["folder"],
        tuple(read_seed(text, {}, problem) for text in given["seeds"]), given["prior"] == "sessions",
        given["fresh_baselines"], given["fleet"] or "",
    )  # fmt: skip
