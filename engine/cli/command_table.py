"""The tables of commands: every command, where its code is, and its line of help. Imports nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    "show": ("engine.cli.kernel_show:show_kernel", "One kernel: facts, verdict, code, diff against its parent."),
    "seed": ("engine.cli.kernel:seed", "Add a kernel from a file or from another session."),
    "pin": ("engine.cli.kernel:pin", "Keep a kernel among the parents of the next rounds."),
    "unpin": ("engine.cli.kernel:unpin", "Unpin a kernel."),
    "prune": ("engine.cli.kernel:prune", "Close a branch: its kernels no longer become parents."),
    "reopen": ("engine.cli.kernel:reopen", "Reopen a pruned branch."),
    "remeasure": ("engine.cli.kernel:remeasure", "Verify and measure a settled kernel again."),
    "race": ("engine.cli.kernel:race", "Race kernels against each other, or repeat undecided races."),
    "dispatch": ("engine.cli.kernel:dispatch", "Add one kernel that runs the best one of the tree on each shape of a suite."),
    "tune": ("engine.cli.kernel:tune", "Tune a kernel on each workload of a suite."),
    "cancel": ("engine.cli.kernel:cancel", "Stop a kernel that has not settled."),
    "note": ("engine.cli.kernel:note", "Add a note to a kernel."),
    "accept": ("engine.cli.kernel:accept", "Accept a quarantined kernel."),
    "discard": ("engine.cli.kernel:discard", "Fail a quarantined kernel."),
    "profile": ("engine.cli.profile:profile", "Read the hardware counters of a kernel."),
    "machine-code": ("engine.cli.machine_code:machine_code", "List a kernel's instructions, or compare two kernels."),
}
SESSION: Table = {
    "list": ("engine.cli.session_list:list_sessions", "All sessions, the latest activity first."),
    "show": ("engine.cli.session_list:show_session", "The kernel tree and where the session stands."),
    "compare": ("engine.cli.session_compare:compare", "Sessions of one problem side by side, at equal budgets."),
    "limits": ("engine.cli.session:limits", "Print or change when a session stops by itself."),
    "pause": ("engine.cli.session:pause", "Pause, now or on a condition."),
    "resume": ("engine.cli.session:resume", "Resume after a pause."),
    "mode": ("engine.cli.session:mode", "Set who approves ideas: ask, ask:SECONDS or autopilot."),
    "instruct": ("engine.cli.session:instruct", "Set standing instructions for the proposer."),
    "note": ("engine.cli.session:note", "Add a note to the session, a kernel, an idea or a round."),
    "undo": ("engine.cli.session:undo", "Take back the latest decision, if nothing was spent on it."),
    "end": ("engine.cli.session:end_session", "End a session."),
    "import": ("engine.cli.session_file:import_session", "Unpack a bundle into the folder of sessions."),
    "delete": ("engine.cli.session_file:delete", "Delete a session and its files."),
}
MODEL: Table = {
    "prompts": ("engine.cli.model:prompts", "List or print the prompts, and those awaiting your reply."),
    "answer": ("engine.cli.model:answer", "Give the reply to a prompt by hand."),
    "set": ("engine.cli.model:set_models", "Print or change proposers, servers and the options of calls."),
    "usage": ("engine.cli.model:usage", "Tokens and dollars by round, role and model."),
    "cancel": ("engine.cli.model:cancel", "Cancel one open call."),
}
FLEET: Table = {
    "status": ("engine.cli.fleet:status", "The workers of running sessions."),
    "start": ("engine.cli.fleet:start", "Start Ray here, as a head or as a node of a cluster."),
    "stop": ("engine.cli.fleet:stop", "Stop Ray here."),
    "doctor": ("engine.cli.fleet:doctor", "Which workers this machine has room for."),
}

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
        "idea": ("engine.cli.command_groups:idea", "list, show, add, approve, edit, reject, park, order, attach, predictions"),
        "kernel": (
            "engine.cli.command_groups:kernel",
            "list, show, seed, pin, prune, race, remeasure, cancel, accept, profile ...",
        ),
        "session": (
            "engine.cli.command_groups:session",
            "list, show, compare, limits, pause, resume, mode, instruct, note, end, import ...",
        ),
        "model": ("engine.cli.command_groups:model", "prompts, answer, set, usage, cancel"),
    },
    "Kernels": {
        "eval": ("engine.cli.evaluate:evaluate", "Verify and measure one kernel."),
        "scaffold": ("engine.cli.scaffold:scaffold", "Write a correct, naive kernel to start from."),
        "export": ("engine.cli.export:export", "Write a session's best kernel, report, data or bundle as a file."),
    },
    "Agents": {
        "mcp": ("engine.cli.mcp:mcp", "Tools for coding agents, over the Model Context Protocol."),
    },
    "Machine": {
        "problems": ("engine.cli.lists:problems", "Problems that ship."),
        "bank": ("engine.cli.lists:bank", "Verified kernels of all sessions, usable as seeds."),
        "trust": ("engine.cli.trust:trust", "Show what a session, bundle or problem from elsewhere would run, and allow it."),
        "fleet": ("engine.cli.command_groups:fleet", "status, start, stop, doctor"),
        "doctor": ("engine.cli.doctor:doctor", "Check compilers, GPU, sandbox and folders of this machine."),
        "completion": ("engine.cli.completion:completion", "Print the completion script for bash, zsh or fish."),
    },
}
GROUPS: Mapping[str, Table] = {"idea": IDEA, "kernel": KERNEL, "session": SESSION, "model": MODEL, "fleet": FLEET}


def command_paths() -> Iterator[tuple[str, ...]]:
    """Every command as it is typed: ``("run",)``, ``("idea", "list")`` ..."""
    for section in SECTIONS.values():
        for name in section:
            yield from ((name, verb) for verb in GROUPS[name]) if name in GROUPS else ((name,),)
