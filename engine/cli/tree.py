"""The commands, by group and section. A command's module is imported when the command is called.

Loads click and nothing of the engine, so that ``espalier --help`` answers at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click

HELP = {"help_option_names": ["-h", "--help"]}
Table = Mapping[str, tuple[str, str]]
"""Command → (``module:attribute``, one line of help)."""

IDEA: Table = {
    "list": ("engine.cli.idea:list_ideas", "All ideas, round by round."),
    "show": ("engine.cli.idea:show_idea", "One idea: rationale, prediction, kernels, result."),
    "add": ("engine.cli.idea:add", "Add an idea of your own."),
    "approve": ("engine.cli.idea:approve", "Approve ideas awaiting approval."),
    "edit": ("engine.cli.idea:edit", "Change an undecided idea."),
    "reject": ("engine.cli.idea:reject", "Reject an idea, with a reason for its proposer."),
    "park": ("engine.cli.idea:park", "Leave an idea undecided; approve it later."),
    "order": ("engine.cli.idea:order", "Set the order of undecided ideas."),
    "attach": ("engine.cli.idea:attach", "Attach a kernel to an idea as material for its writer."),
    "predictions": ("engine.cli.idea:predictions", "Predicted against measured speedups, by author."),
}
KERNEL: Table = {
    "list": ("engine.cli.kernel_show:list_kernels", "All kernels with outcome, time and speedup."),
    "show": ("engine.cli.kernel_show:show_kernel", "One kernel: facts, verdict, code, difference to its parent."),
    "seed": ("engine.cli.kernel:seed", "Add a kernel from a file or from another session."),
    "pin": ("engine.cli.kernel:pin", "Keep a kernel among the parents of the next rounds."),
    "unpin": ("engine.cli.kernel:unpin", "Unpin a kernel."),
    "prune": ("engine.cli.kernel:prune", "Close a branch: its kernels become parents no more."),
    "reopen": ("engine.cli.kernel:reopen", "Reopen a pruned branch."),
    "remeasure": ("engine.cli.kernel:remeasure", "Verify and measure a settled kernel again."),
    "race": ("engine.cli.kernel:race", "Race kernels against each other, or repeat undecided races."),
    "cancel": ("engine.cli.kernel:cancel", "Stop a kernel that has not settled."),
    "note": ("engine.cli.kernel:note", "Add a note to a kernel."),
    "accept": ("engine.cli.kernel:accept", "Accept a quarantined kernel."),
    "discard": ("engine.cli.kernel:discard", "Fail a quarantined kernel."),
    "profile": ("engine.cli.profile:profile", "Read the hardware counters of a kernel."),
}
SESSION: Table = {
    "list": ("engine.cli.session_list:list_sessions", "All sessions, the latest activity first."),
    "show": ("engine.cli.session_list:show_session", "The kernel tree and where the session stands."),
    "limits": ("engine.cli.session:limits", "Print or change when a session stops by itself."),
    "pause": ("engine.cli.session:pause", "Pause, now or on a condition."),
    "resume": ("engine.cli.session:resume", "Resume after a pause."),
    "mode": ("engine.cli.session:mode", "Set who approves ideas: ask, ask:SECONDS or autopilot."),
    "instruct": ("engine.cli.session:instruct", "Set standing instructions for the proposer."),
    "note": ("engine.cli.session:note", "Add a note to the session, a kernel, an idea or a round."),
    "end": ("engine.cli.session:end_session", "End a session."),
    "import": ("engine.cli.session_file:import_session", "Unpack a bundle into the folder of sessions."),
    "delete": ("engine.cli.session_file:delete", "Delete a session and its files."),
}
MODEL: Table = {
    "prompts": ("engine.cli.model:prompts", "List or print the prompts, and those awaiting your reply."),
    "answer": ("engine.cli.model:answer", "Give the reply to a prompt by hand."),
    "usage": ("engine.cli.model:usage", "Tokens and dollars by round, role and model."),
    "cancel": ("engine.cli.model:cancel", "Cancel one open call."),
}


def suggest(path: Sequence[str], ctx: click.Context) -> NoReturn:
    """Raises the usage error for an unknown command, with the nearest known one."""
    from engine.cli.suggestions import unknown_command

    raise click.UsageError(unknown_command(path), ctx)


class CommandGroup(click.Group):
    """Commands by section, each imported on first use."""

    def __init__(self, sections: Mapping[str, Table], **attributes: Any) -> None:
        super().__init__(context_settings=HELP, **attributes)
        self.sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in self.sections.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in self.sections.values():
            if cmd_name in section:
                module, _, attribute = section[cmd_name][0].partition(":")
                command: click.Command = getattr(importlib.import_module(module), attribute)
                return command
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.get_command(ctx, args[0])
        if known is None and not ctx.resilient_parsing and not args[0].startswith("-"):
            parents = ctx.command_path.split()[1:]
            suggest([*parents, *args[: 2 - len(parents)]], ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


def _group(name: str, table: Table, text: str) -> CommandGroup:
    return CommandGroup({"Commands": table}, name=name, help=text)


idea = _group("idea", IDEA, "Show, add, approve and order the ideas of a session.")
kernel = _group("kernel", KERNEL, "Show, seed, race and steer the kernels of a session.")
session = _group("session", SESSION, "List sessions, and steer one as a whole.")
model = _group("model", MODEL, "Prompts, replies, usage and open calls of a session's models.")

SECTIONS: Mapping[str, Table] = {
    "Search": {
        "run": ("engine.cli.run:run", "Start a session on a problem; headless, run it on autopilot."),
        "open": ("engine.cli.step:open_session", "Resume a session."),
        "step": ("engine.cli.step:step", "Resume a session for one round, headless."),
        "replay": ("engine.cli.replay:replay", "Watch a recorded session, or print it with --headless."),
        "follow": ("engine.cli.follow:follow", "Watch a session that another process runs."),
        "fork": ("engine.cli.fork:fork", "Copy a session up to an earlier point and search from there."),
        "rerun": ("engine.cli.rerun:rerun", "Verify and measure a session's kernels on this machine."),
        "ablate": ("engine.cli.rerun:ablate", "Measure each step of the winning lineage on this machine."),
    },
    "Steer": {
        "idea": ("engine.cli.tree:idea", "list, show, add, approve, edit, reject, park, order, attach, predictions"),
        "kernel": ("engine.cli.tree:kernel", "list, show, seed, pin, prune, race, remeasure, cancel, accept, profile ..."),
        "session": ("engine.cli.tree:session", "list, show, limits, pause, resume, mode, instruct, note, end, import, delete"),
        "model": ("engine.cli.tree:model", "prompts, answer, usage, cancel"),
    },
    "Kernels": {
        "eval": ("engine.cli.evaluate:evaluate", "Verify and measure one kernel."),
        "scaffold": ("engine.cli.scaffold:scaffold", "Write a correct, naive kernel to start from."),
        "export": ("engine.cli.export:export", "Write a session's best kernel, report, data or bundle as a file."),
    },
    "Machine": {
        "problems": ("engine.cli.lists:problems", "Problems that ship."),
        "bank": ("engine.cli.lists:bank", "Verified kernels of all sessions, usable as seeds."),
        "doctor": ("engine.cli.doctor:doctor", "Check compilers, GPU, sandbox and folders of this machine."),
        "completion": ("engine.cli.completion:completion", "Print the completion script for bash, zsh or fish."),
    },
}
GROUPS: Mapping[str, Table] = {"idea": IDEA, "kernel": KERNEL, "session": SESSION, "model": MODEL}


def command_paths() -> Iterator[tuple[str, ...]]:
    """Every command as it is typed: ``("run",)``, ``("idea", "list")`` ..."""
    for section in SECTIONS.values():
        for name in section:
            yield from ((name, verb) for verb in GROUPS[name]) if name in GROUPS else ((name,),)
