"""Suggestions for what was mistyped: the nearest command, and synonyms that people guess."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from engine.cli.command_table import GROUPS, SECTIONS, command_paths

_SEED = "kernel seed"
_COMMAND = 0.65
_SYNONYM = 0.82
"""How near a typed word must be to a command, or to one of the synonyms, which are many and short."""
SYNONYMS: Mapping[str, str] = {
    # the names of earlier versions
    "seed": _SEED, "pin": "kernel pin", "unpin": "kernel unpin", "prune": "kernel prune", "reopen": "kernel reopen",
    "again": "kernel remeasure", "race": "kernel race", "cancel": "kernel cancel", "accept": "kernel accept",
    "discard": "kernel discard", "note": "session note", "instruct": "session instruct", "mode": "session mode",
    "limits": "session limits", "pause": "session pause", "continue": "session resume", "close": "session end",
    "prompts": "model prompts", "answer": "model answer", "spend": "model usage", "profile": "kernel profile",
    "sessions": "session list",
    # what people guess
    "bench": "eval", "benchmark": "eval", "evaluate": "eval", "measure": "eval", "test": "eval", "verify": "eval",
    "check": "eval", "time": "eval", "compare": "kernel race", "versus": "kernel race", "vs": "kernel race",
    "diff": "kernel show", "code": "kernel show", "source": "kernel show", "verdict": "kernel show",
    "cost": "model usage", "costs": "model usage", "tokens": "model usage", "usage": "model usage", "price": "model usage",
    "spending": "model usage", "budget": "session limits", "limit": "session limits", "reply": "model answer",
    "paste": "model answer", "prompt": "model prompts", "calls": "model prompts", "models": "model usage",
    "resume": "open", "ls": "session list", "list": "session list", "show": "session show", "status": "session show",
    "info": "session show", "tree": "session show", "ps": "session list", "history": "session list",
    "new": "run", "start": "run", "search": "run", "init": "run", "create": "run", "begin": "run", "tune": "run",
    "optimize": "run", "optimise": "run", "generate": "scaffold", "template": "scaffold", "skeleton": "scaffold",
    "delete": "session delete", "rm": "session delete", "remove": "session delete", "clean": "doctor",
    "gc": "doctor", "cache": "doctor", "cleanup": "doctor", "why": "kernel show", "reason": "kernel show",
    "reasons": "kernel show", "rejected": "kernel show", "failed": "kernel show", "explain": "kernel show",
    "inject": _SEED, "undo": "kernel reopen", "unprune": "kernel reopen", "compile": "run", "ollama": "run", "vllm": "run",
    "llama": "run", "move": "export", "transfer": "export", "share": "export", "archive": "export", "backup": "export",
    "import": "session import", "unpack": "session import", "load": "session import", "pack": "export",
    "bundle": "export", "save": "export", "report": "export", "log": "replay", "logs": "replay", "view": "replay",
    "print": "replay", "play": "replay", "watch": "follow", "tail": "follow", "attach": "idea attach", "next": "step",
    "round": "step", "stop": "session pause", "finish": "session end", "end": "session end", "quit": "session end",
    "exit": "session end", "kill": "kernel cancel", "abort": "kernel cancel", "retry": "kernel remeasure",
    "remeasure": "kernel remeasure", "approve": "idea approve", "reject": "idea reject", "park": "idea park",
    "ideas": "idea list", "add": "idea add", "predictions": "idea predictions", "propose": "idea add",
    "kernels": "kernel list", "best": "kernel list", "leaderboard": "kernel list", "results": "kernel list",
    "counters": "kernel profile", "ncu": "kernel profile", "perf": "kernel profile", "branch": "fork", "clone": "fork",
    "copy": "fork", "ablation": "ablate", "reproduce": "rerun", "repeat": "rerun", "problem": "problems",
    "seeds": "bank", "env": "doctor", "devices": "doctor", "device": "doctor", "gpus": "doctor", "config": "doctor",
    "allow": "trust", "permit": "trust", "untrust": "trust", "revoke": "trust",
    "version": "--version", "help": "--help", "completions": "completion", "autocomplete": "completion",
}  # fmt: skip
"""What somebody types → the command that does it."""

VERBS: Mapping[str, Mapping[str, str]] = {
    "idea": {
        "ls": "list", "select": "approve", "accept": "approve", "new": "add", "write": "add", "create": "add",
        "drop": "reject", "discard": "reject", "delete": "reject", "cancel": "reject", "change": "edit", "update": "edit",
        "reorder": "order", "sort": "order", "later": "park", "skip": "park", "score": "predictions", "detach": "attach",
        "beside": "attach", "view": "show", "info": "show", "waiting": "list", "pending": "list",
    },
    "kernel": {
        "ls": "list", "again": "remeasure", "measure": "remeasure", "rerun": "remeasure", "retry": "remeasure",
        "compare": "race", "versus": "race", "add": "seed", "import": "seed", "new": "seed", "stop": "cancel",
        "kill": "cancel", "abort": "cancel", "view": "show", "code": "show", "diff": "show", "source": "show",
        "cat": "show", "info": "show", "verdict": "show", "why": "show", "reason": "show", "rejected": "show",
        "failed": "show", "explain": "show", "inject": "seed", "undo": "reopen", "unprune": "reopen",
        "comment": "note", "close": "prune", "drop": "prune",
        "delete": "prune", "remove": "prune", "reject": "discard", "fail": "discard", "believe": "accept",
        "approve": "accept", "counters": "profile", "ncu": "profile", "perf": "profile", "keep": "pin", "best": "list",
    },
    "session": {
        "ls": "list", "close": "end", "finish": "end", "stop": "pause", "continue": "resume", "unpause": "resume",
        "rm": "delete", "remove": "delete", "info": "show", "status": "show", "view": "show", "tree": "show",
        "budget": "limits", "limit": "limits", "instructions": "instruct", "comment": "note", "unpack": "import",
        "load": "import",
    },
    "model": {
        "ls": "prompts", "list": "prompts", "calls": "prompts", "show": "prompts", "prompt": "prompts", "reply": "answer",
        "paste": "answer", "spend": "usage", "cost": "usage", "costs": "usage", "tokens": "usage", "spending": "usage",
        "stop": "cancel", "abort": "cancel",
    },
}  # fmt: skip
"""The same inside each group."""

MOVED: Mapping[tuple[str, str], str] = {
    ("session", "open"): "open", ("session", "step"): "step", ("session", "replay"): "replay", ("session", "fork"): "fork",
    ("session", "follow"): "follow", ("session", "watch"): "follow", ("session", "export"): "export",
    ("session", "new"): "run", ("session", "run"): "run", ("session", "start"): "run", ("session", "rerun"): "rerun",
    ("session", "usage"): "model usage", ("session", "cost"): "model usage", ("session", "spend"): "model usage",
    ("kernel", "eval"): "eval", ("kernel", "export"): "export", ("kernel", "scaffold"): "scaffold",
    ("session", "move"): "export", ("session", "transfer"): "export", ("session", "share"): "export",
    ("session", "archive"): "export", ("session", "backup"): "export", ("session", "clean"): "doctor",
    ("session", "why"): "kernel show",
    ("kernel", "bank"): "bank", ("idea", "note"): "session note", ("kernel", "ablate"): "ablate",
}  # fmt: skip
"""Commands that are looked for in a group and are elsewhere."""


OPTIONS: Mapping[str, str] = {
    "--cost": "--budget-usd", "--max-cost": "--budget-usd", "--usd": "--budget-usd", "--dollars": "--budget-usd",
    "--budget": "--budget-usd", "--tokens": "--budget-tokens", "--max-tokens": "--budget-tokens", "--model": "--proposer",
    "--provider": "--proposer",
}  # fmt: skip
"""What somebody types as an option → the option."""


def unknown_option(name: str, near: Sequence[str], known: Iterable[str]) -> str:
    """The message for an unknown option: a synonym that the command has, else the first of ``near``."""
    synonym = OPTIONS.get(name)
    found = [synonym] if synonym in set(known) else list(near)
    return f"unknown option {name!r}" + (f": did you mean {found[0]}?" if found else "")


def unknown_command(path: Sequence[str]) -> str:
    """The message for words that are no command: ``unknown command 'spend': did you mean `espalier model usage`?``."""
    typed, known = " ".join(path), list(command_paths())
    found = _in_group(*path[:2]) if path[0] in GROUPS and len(path) > 1 else _at_top(path, known)
    shown = typed if path[0] in GROUPS else path[0]
    return f"unknown command {shown[:100]!r}" + (f": did you mean `espalier {found}`?" if found else "")


def _in_group(group: str, verb: str) -> str:
    if (group, verb) in MOVED:
        return MOVED[group, verb]
    verbs = GROUPS[group]
    chosen = VERBS.get(group, {}).get(verb) or nearest(verb, verbs)
    if chosen:
        return f"{group} {chosen}"
    other = next((name for name, table in GROUPS.items() if verb in table), None)
    if other is not None:
        return f"{other} {verb}"
    tops = [name for section in SECTIONS.values() for name in section]
    if verb in tops:
        return verb
    guess = nearest(verb, VERBS.get(group, {}), _SYNONYM)
    return f"{group} {VERBS[group][guess]}" if guess else f"{group} --help"


def _at_top(path: Sequence[str], known: Sequence[tuple[str, ...]]) -> str:
    word = path[0].lower()
    tops = [name for section in SECTIONS.values() for name in section]
    if word in SYNONYMS:
        return SYNONYMS[word]
    found = nearest(word, tops, _COMMAND) or nearest(word, SYNONYMS, _SYNONYM)
    if found in tops:
        verb = path[1] if found in GROUPS and len(path) > 1 else ""
        return f"{found} {verb}" if verb in GROUPS.get(found, ()) else found
    if found:
        return SYNONYMS[found]
    verbs = {path[-1]: " ".join(path) for path in known if len(path) > 1}
    verb = nearest(word, verbs)
    return verbs[verb] if verb else ""


def nearest(word: str, known: Iterable[str], cutoff: float = _COMMAND) -> str:
    """The known word nearest to ``word``; empty when none is near."""
    names = list(known)
    begins = [name for name in names if len(word) >= 3 and name.startswith(word)]
    return next(iter(begins[:1] or difflib.get_close_matches(word, names, 1, cutoff)), "")


def number_words(message: str) -> str:
    """A message of click in plain words: it calls a wrong text *not a valid integer range*."""
    for name, words in (("a valid integer", "a whole number"), ("a valid float", "a number")):
        message = message.replace(f"is not {name} range", f"is not {words}").replace(f"is not {name}", f"is not {words}")
    return message
