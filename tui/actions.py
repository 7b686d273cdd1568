"""The registry of actions: id, key, label, help and the screens where each is available.

Bindings, footer, palette, help screen and the documented key table are generated from it. The registry imports no screen: the
screen (or app) that offers an action implements ``action_<verb>``.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path

import tomli
from textual.binding import Binding


class Place(StrEnum):
    """Where an action is available."""

    ANYWHERE = "anywhere"
    HOME = "home"
    SESSION = "session"
    GATE = "gate"
    COMPARE = "compare"
    WORKLOADS = "workloads"


class Needs(StrEnum):
    """What an action requires of a session's source."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    SUITE = "suite"
    """``SUBMIT``, and several workloads."""
    SEEK = "seek"


@dataclass(frozen=True, slots=True)
class Action:
    """One action. ``id`` is ``place.verb``, the name used in ``keys.toml``."""

    id: str
    key: str
    """Key names in Textual's spelling, comma separated; the first is displayed."""
    label: str
    help: str
    places: tuple[Place, ...]
    needs: Needs = Needs.NOTHING
    call: str = ""
    """The call that runs the action, if it is not the verb of the id: ``tab('CODE')``."""

    @property
    def run(self) -> str:
        """The call that a binding runs."""
        return self.call or self.id.partition(".")[2]

    @property
    def verb(self) -> str:
        """Name of the method, without ``action_``."""
        return self.run.partition("(")[0]


def _tab(key: int, tab: str, help_text: str) -> Action:
    label = tab.capitalize()
    return Action(f"session.{tab}", str(key), label, help_text, (Place.SESSION, Place.COMPARE), call=f"tab('{tab.upper()}')")


_A, _H, _S, _G, _C = Place.ANYWHERE, Place.HOME, Place.SESSION, Place.GATE, Place.COMPARE
_W = Place.WORKLOADS
_STEER, _SUITE = Needs.SUBMIT, Needs.SUITE
_SEEK = Needs.SEEK

ACTIONS: tuple[Action, ...] = (
    Action("app.command_palette", "ctrl+p", "Palette", "Find an action, a kernel or an idea by name.", (_A,)),
    Action("app.help", "question_mark,f1", "Help", "List the keys of this screen.", (_A,)),
    Action("app.keys", "backslash,f4", "Keys", "Show the keys that act now; press one to use it.", (_A,)),
    Action("app.theme", "f2", "Theme", "Use the next theme: dark, light, high contrast.", (_A,)),
    Action("app.settings", "f3", "Settings", "Set theme, bell, desktop notices and terminal title.", (_A,)),
    Action("app.screenshot", "f12", "Screenshot", "Save the screen as an SVG file.", (_A,)),
    Action("app.suspend", "ctrl+z", "Suspend", "Return to the shell; `fg` resumes. Running work waits.", (_A,)),
    Action("app.quit", "ctrl+q", "Quit", "Quit; `espalier open` resumes the session.", (_A,)),
    Action("app.down", "j", "Down", "Move down, as the arrow key does.", (_A,), call="motion('down')"),
    Action("app.up", "k", "Up", "Move up, as the arrow key does.", (_A,), call="motion('up')"),
    Action("app.first", "g,ctrl+home", "First", "Move to the start, as the Home key does.", (_A,), call="motion('home')"),
    Action("app.last", "G", "Last", "Move to the end, as the End key does.", (_A,), call="motion('end')"),
    Action("app.page_down", "ctrl+d", "Page down", "Move a page down, as PgDn does.", (_A,), call="motion('pagedown')"),
    Action("app.page_up", "ctrl+u", "Page up", "Move a page up, as PgUp does.", (_A,), call="motion('pageup')"),
    Action("home.leave", "q", "Quit", "Quit, as Ctrl-Q does.", (_H,)),
    Action("home.start", "n", "New session", "Start a session: problem, device, mode, limits.", (_H,)),
    Action("home.open", "o", "Open", "Resume the session.", (_H,)),
    Action("home.replay", "r", "Replay", "Replay the recorded session.", (_H,)),
    Action("home.follow", "w", "Follow", "Follow a session that another process runs.", (_H,)),
    Action("home.compare", "v", "Compare", "Show the session beside the others of its problem.", (_H,)),
    Action("home.delete", "delete,D", "Delete", "Delete the session's folder; asks first.", (_H,)),
    Action("home.refresh", "f5", "Refresh", "Reload the list of sessions.", (_H,)),
    Action("gate.approve", "a,enter", "Approve", "Approve the idea; its kernels are written next.", (_G,), _STEER),
    Action("gate.approve_all", "A", "Approve all", "Approve every idea that awaits approval.", (_G,), _STEER),
    Action("gate.reject", "r", "Reject", "Reject the idea. The reason goes into the next prompt.", (_G,), _STEER),
    Action("gate.edit", "e", "Edit", "Edit the idea's text, parent and number of kernels.", (_G,), _STEER),
    Action("gate.write", "w", "Write kernel", "Write or paste the kernel yourself.", (_G,), _STEER),
    Action("gate.park", "d", "Park", "Put the idea aside; it can be approved later.", (_G,), _STEER),
    Action("gate.parent", "p", "Parent", "Choose another parent kernel for the idea.", (_G,), _STEER),
    Action("gate.writer", "W", "Writer", "Choose the writer of this idea's code.", (_G,), _STEER),
    Action("gate.attach", "m", "Attach kernel", "Attach a kernel for the writer to read, or detach it.", (_G,), _STEER),
    Action("gate.up", "less_than_sign,shift+up", "Move up", "Move the idea up: it is written earlier.", (_G,), _STEER),
    Action("gate.down", "greater_than_sign,shift+down", "Move down", "Move the idea down: it is written later.", (_G,), _STEER),
    Action("gate.more", "plus", "More kernels", "Ask for one more kernel of the idea.", (_G,), _STEER),
    Action("gate.fewer", "minus", "Fewer kernels", "Ask for one kernel fewer of the idea.", (_G,), _STEER),
    Action("gate.previous_round", "left_square_bracket", "Prev. round", "Show the ideas of the previous round.", (_G,)),
    Action("gate.next_round", "right_square_bracket", "Next round", "Show the ideas of the next round.", (_G,)),
    Action("gate.scroll_down", "space,pagedown", "More", "Scroll the idea's text down.", (_G,), call="scroll_card(1)"),
    Action("gate.scroll_up", "b,pageup", "Less", "Scroll the idea's text up.", (_G,), call="scroll_card(-1)"),
    Action("gate.idea", "i,N", "New idea", "Add an idea.", (_G,), _STEER),
    Action("steer.idea", "N", "New idea", "Add an idea.", (_S,), _STEER),
    Action("steer.seed", "s", "Seed", "Add a kernel: file, bank, other session, clipboard.", (_S, _G), _STEER),
    Action("steer.mode", "o", "Mode", "Choose who approves ideas: ask, timed ask or autopilot.", (_S, _G), _STEER),
    Action("steer.limits", "L", "Limits", "Set when the session ends; more rounds reopen an ended one.", (_S, _G), _STEER),
    Action("steer.models", "O", "Models", "Set proposers, writer, servers and options of models.", (_S, _G), _STEER),
    Action("steer.pause", "P", "Pause", "Pause the session, or resume it.", (_S, _G), _STEER),
    Action("steer.pauses", "C", "Pause at", "Set where the session pauses: tokens, dollars or a round.", (_S, _G), _STEER),
    Action("steer.answer", "Q", "Prompts", "Answer prompts by hand: copy a prompt, paste the reply.", (_S, _G), _STEER),
    Action("steer.cancel_call", "K", "Cancel call", "Cancel an open model call.", (_S, _G), _STEER),
    Action("steer.instruct", "I", "Instruct", "Set instructions that every later prompt contains.", (_S, _G), _STEER),
    Action("steer.undo", "u", "Undo", "Take back your latest decision, if nothing was spent on it.", (_S, _G), _STEER),
    Action("steer.retry", "R", "Retry", "Retry failed work.", (_S, _G), _STEER),
    Action("steer.end", "ctrl+e", "End", "End the session and cancel unfinished kernels.", (_S,), _STEER),
    Action("session.gate", "i", "Ideas", "Show the ideas and approve those that await approval.", (_S,)),
    Action("session.pin", "p", "Pin", "Pin the kernel as a parent of later rounds, or unpin it.", (_S,), _STEER),
    Action("session.prune", "x", "Prune", "Prune the kernel and its descendants, or reopen a pruned branch.", (_S,), _STEER),
    Action("session.cancel", "c", "Cancel", "Cancel an unfinished kernel.", (_S,), _STEER),
    Action("session.remeasure", "M", "Remeasure", "Verify and measure the kernel again.", (_S,), _STEER),
    Action("session.race", "r", "Race", "Race the kernel against the marked one or the incumbent.", (_S,), _STEER),
    Action("session.race_fastest", "B", "Race fastest", "Race the fastest kernels against the incumbent.", (_S,), _STEER),
    Action("session.accept", "a", "Accept", "Accept a quarantined kernel; asks for the reason.", (_S,), _STEER),
    Action("session.discard", "d", "Discard", "Discard a quarantined kernel: it fails.", (_S,), _STEER),
    Action("session.note", "n", "Note", "Add a note to the kernel.", (_S,), _STEER),
    Action("session.mark", "m", "Mark", "Mark the kernel for comparing, racing or combining.", (_S,)),
    Action("session.compare", "v", "Compare", "Compare figures and code with the marked kernel.", (_S,)),
    Action("session.workloads", "W", "Workloads", "Show the speedup of every kernel on every workload of the suite.", (_S,)),
    Action("session.tune", "T", "Tune", "Tune the kernel on each workload of the suite.", (_S,), _SUITE),
    Action("session.dispatch", "D", "Dispatch", "Add one kernel that runs the best one on each shape.", (_S,), _SUITE),
    Action("session.combine", "X", "Combine", "Add an idea that combines the marked kernel with this one.", (_S,), _STEER),
    Action("session.attach", "A", "Attach", "Attach the kernel to an idea for its writer to read.", (_S,), _STEER),
    Action("session.fork", "F", "Fork", "Start a new session from an earlier point of this one.", (_S,)),
    Action("session.editor", "e", "Editor", "Open the code in $VISUAL or $EDITOR; a changed text is a new kernel.", (_S, _C)),
    Action("session.profile", "H", "Profile", "Read the kernel's counters and hot code; name its bottleneck.", (_S,), _STEER),
    Action("session.copy", "y", "Copy code", "Copy the kernel's code to the clipboard.", (_S, _C)),
    Action("session.incumbent", "b", "Incumbent", "Select the incumbent.", (_S,)),
    Action("session.pane", "t", "Pane", "Show the next pane: kernel, charts, events, notes, usage.", (_S,)),
    Action("session.usage", "dollar_sign", "Usage", "Show tokens and dollars by round, role and model.", (_S,)),
    Action("session.sort", "S", "Sort", "Sort the tree by age, by best branch, or all kernels by speedup.", (_S,)),
    Action("session.filter", "slash", "Filter", "Filter the kernels while typing; on a page: search it, then n and N.", (_S,)),
    Action("session.columns", "vertical_line", "Columns", "Choose the columns of the tree and their widths.", (_S,)),
    Action("session.narrower", "less_than_sign", "Narrower", "Give the tree less room.", (_S,), call="split(-1)"),
    Action("session.wider", "greater_than_sign", "Wider", "Give the tree more room.", (_S,), call="split(1)"),
    _tab(1, "idea", "Show the kernel's idea and lineage."),
    _tab(2, "code", "Show the kernel's code."),
    _tab(3, "diff", "Show the changes from the parent or the marked kernel."),
    _tab(4, "checks", "Show the kernel's errors and the correctness check."),
    _tab(5, "timing", "Show samples, intervals and races."),
    _tab(6, "resources", "Show registers, shared memory, spills and instructions."),
    _tab(7, "log", "Show the output of the compiler and the trial."),
    Action("session.machine_code", "8", "Machine code", "List the instructions, or compare those of the marked kernel.", (_S,)),
    Action("session.zoom", "z", "Zoom", "Show only the focused pane, or all panes.", (_S,)),
    Action("session.home", "escape,q", "Home", "Go to the home screen; a running search continues.", (_S,)),
    Action("replay.play", "space", "Play", "Play or pause.", (_S,), _SEEK),
    Action("replay.forward", "full_stop", "Step", "Go forward one event.", (_S,), _SEEK),
    Action("replay.back", "comma", "Step back", "Go back one event.", (_S,), _SEEK),
    Action("replay.next_round", "right_square_bracket", "Next round", "Jump to the next round.", (_S,), _SEEK),
    Action("replay.previous_round", "left_square_bracket", "Prev. round", "Jump to the previous round.", (_S,), _SEEK),
    Action("replay.next_incumbent", "right_parenthesis", "Next incumbent", "Jump to the next incumbent.", (_S,), _SEEK),
    Action("replay.previous_incumbent", "left_parenthesis", "Prev. incumbent", "Jump to the previous incumbent.", (_S,), _SEEK),
    Action("replay.next_decision", "right_curly_bracket", "Next decision", "Jump to your next decision.", (_S,), _SEEK),
    Action("replay.previous_decision", "left_curly_bracket", "Prev. decision", "Jump to your previous decision.", (_S,), _SEEK),
    Action("replay.faster", "plus", "Faster", "Double the speed.", (_S,), _SEEK),
    Action("replay.slower", "minus", "Slower", "Halve the speed.", (_S,), _SEEK),
    Action("gate.back", "escape,q", "Back", "Return to the tree; open ideas keep waiting.", (_G,)),
    Action("compare.back", "escape,q", "Back", "Return to the tree.", (_C,)),
    Action("compare.swap", "x", "Swap", "Swap the two kernels.", (_C,)),
    Action("workloads.sort", "s", "Sort", "Sort by the column of the cursor; Enter goes to the kernel.", (_W,)),
    Action("workloads.back", "escape,q", "Back", "Return to the tree.", (_W,)),
)  # fmt: skip

RENAMED: Mapping[str, str] = {
    "app.dark": "app.theme",
    "app.picture": "app.screenshot",
    "home.steer": "home.open",
    "gate.material": "gate.attach",
    "gate.earlier": "gate.previous_round",
    "gate.later": "gate.next_round",
    "steer.finish": "steer.end",
    "session.again": "session.remeasure",
    "session.race_best": "session.race_fastest",
    "session.cross": "session.combine",
    "session.best": "session.incumbent",
    "session.budget": "session.usage",
    "session.machine": "session.resources",
    "session.verification": "session.checks",
    "replay.last_round": "replay.previous_round",
    "replay.next_best": "replay.next_incumbent",
    "replay.last_best": "replay.previous_incumbent",
    "replay.last_decision": "replay.previous_decision",
}
"""Earlier action id → its present name, for key files written before the change."""

PRESETS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "vim": {"app.command_palette": "colon,ctrl+p", "session.pane": "ctrl+w,t"},
}
"""Sets of keys, chosen by ``preset = "vim"`` in the key file; its other lines win over the set."""


_BY_ID = {action.id: action for action in ACTIONS}
_GROUPS = (
    ("Home", "home."), ("Ideas", "gate."), ("Steering", "steer."), ("Kernels", "session."), ("Replay", "replay."),
    ("Compare", "compare."), ("Workloads", "workloads."), ("Anywhere", "app."),
)  # fmt: skip

_KEY_NAMES = {
    "backslash": "\\",
    "question_mark": "?", "full_stop": ".", "comma": ",", "right_square_bracket": "]", "left_square_bracket": "[",
    "right_parenthesis": ")", "left_parenthesis": "(", "right_curly_bracket": "}", "left_curly_bracket": "{", "plus": "+",
    "minus": "-", "slash": "/", "escape": "Esc", "enter": "Enter", "space": "Space", "delete": "Del",
    "colon": ":", "vertical_line": "|", "pageup": "PgUp", "pagedown": "PgDn",
    "less_than_sign": "<", "greater_than_sign": ">", "dollar_sign": "$", "shift+up": "Shift-Up", "shift+down": "Shift-Down",
}  # fmt: skip


def key_names(keys: str) -> str:
    """Key names as printed on a keyboard: ``?, F1``."""
    return ", ".join(_key_name(key.strip()) for key in keys.split(","))


def shown_key(action: str, user_keys: Mapping[str, str]) -> str:
    """The first key of an action as printed on a keyboard: the user's, or else the registry's."""
    return key_names(user_keys.get(action, by_id(action).key)).split(", ")[0]


def _key_name(key: str) -> str:
    if key in _KEY_NAMES:
        return _KEY_NAMES[key]
    if key.startswith("ctrl+"):
        return f"Ctrl-{key[5:].capitalize()}"
    return key.upper() if len(key) > 1 else key


def actions(place: Place) -> tuple[Action, ...]:
    """The actions of one kind of screen, in registry order."""
    return tuple(action for action in ACTIONS if place in action.places)


def bindings(place: Place) -> list[Binding]:
    """The bindings of one kind of screen."""
    here = [_binding(action, action.run) for action in actions(place)]
    return here if place is Place.ANYWHERE else [_binding(by_id("app.help"), "app.help"), *here]


def _binding(action: Action, run: str) -> Binding:
    shown = key_names(action.key).split(", ")[0]
    return Binding(action.key, run, action.label, show=False, tooltip=action.help, id=action.id, key_display=shown)


def by_id(action: str) -> Action:
    """The action with this id."""
    return _BY_ID[action]


def action_for(verb: str, place: Place) -> Action | None:
    """The action with this verb on this kind of screen, or ``None``."""
    return next((a for a in ACTIONS if a.verb == verb and (place in a.places or Place.ANYWHERE in a.places)), None)


def steers(key: str, place: Place, user_keys: Mapping[str, str]) -> bool:
    """Whether the key is that of an action on this kind of screen that gives the session a command."""
    steering = (a for a in actions(place) if a.needs in (Needs.SUBMIT, Needs.SUITE))
    return any(key in user_keys.get(a.id, a.key).replace(" ", "").split(",") for a in steering)


def actions_by_group(place: Place | None = None) -> list[tuple[str, tuple[Action, ...]]]:
    """Actions by heading: all, or those available on one kind of screen."""
    found = []
    for title, prefix in _GROUPS:
        here = tuple(
            a for a in ACTIONS
            if a.id.startswith(prefix) and (place is None or place in a.places or Place.ANYWHERE in a.places)
        )  # fmt: skip
        if here:
            found.append((title, here))
    return found


def read_keymap(path: Path) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The user's keys (action id → keys) from a TOML file, and one line for each error.

    A missing file counts as empty; invalid entries are skipped.
    """
    try:
        table = tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ()
    except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        return {}, (f"{path} cannot be read, default keys apply: {error}",)
    known = {action.id for action in ACTIONS}
    errors: list[str] = []
    preset = table.pop("preset", "default")
    if not isinstance(preset, str) or preset not in PRESETS:
        errors.append(f"{path}: unknown preset {preset!r}: use {' or '.join(PRESETS)}")
        preset = "default"
    keys = dict(PRESETS[preset])
    for name, value in _flatten(table):
        if name not in known:
            errors.append(f"{path}: unknown action {name!r}{_suggestion(name, known)}")
        elif not isinstance(value, str) or not value.strip():
            errors.append(f'{path}: {name} needs a quoted key, for example "f7"')
        else:
            keys[name] = value
    return keys, tuple(errors)


def _suggestion(name: str, known: Collection[str]) -> str:
    nearest = RENAMED.get(name) or next(iter(get_close_matches(name, known, 1)), "")
    return f": did you mean {nearest!r}?" if nearest else ""


def _flatten(table: Mapping[str, object]) -> list[tuple[str, object]]:
    """Entries by full id: ``[gate] approve = "y"`` equals ``"gate.approve" = "y"``."""
    found: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += [(f"{name}.{inner}", one) for inner, one in value.items()]
        else:
            found.append((name, value))
    return found


def key_table() -> str:
    """The key table of the documentation, as Markdown."""
    lines: list[str] = []
    for title, found in actions_by_group():
        lines += [f"**{title}**", "", "| key | action | id |", "|---|---|---|"]
        lines += [f"| `{key_names(a.key)}` | {a.label}: {a.help} | `{a.id}` |" for a in found]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(key_table())
