"""The registry of actions: id, key, label, help and the screens each belongs to.

Bindings, footer, palette, the help screen and the README's key table are made from it. Knows no screen: the screen (or app)
that shows an action has its method ``action_<verb>``.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from textual.binding import Binding


class Place(StrEnum):
    """Where an action is available."""

    ANYWHERE = "anywhere"
    HOME = "home"
    SESSION = "session"
    GATE = "gate"
    COMPARE = "compare"


class Needs(StrEnum):
    """What an action requires of a session's source."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    SEEK = "seek"


@dataclass(frozen=True, slots=True)
class Action:
    """One action. ``id`` is ``place.verb``, as keymap files name it."""

    id: str
    key: str
    """Keys as Textual spells them, comma separated; the first is shown."""
    label: str
    help: str
    places: tuple[Place, ...]
    needs: Needs = Needs.NOTHING
    footer: bool = False
    call: str = ""
    """What is run, where it is not the verb of the id: ``tab('CODE')``."""

    @property
    def run(self) -> str:
        """What a binding runs."""
        return self.call or self.id.partition(".")[2]

    @property
    def verb(self) -> str:
        """Name of the method that does it, without ``action_``."""
        return self.run.partition("(")[0]


def _tab(key: int, tab: str, words: str) -> Action:
    label = tab.capitalize()
    return Action(f"session.{tab}", str(key), label, words, (Place.SESSION, Place.COMPARE), call=f"tab('{tab.upper()}')")


_A, _H, _S, _G, _C = Place.ANYWHERE, Place.HOME, Place.SESSION, Place.GATE, Place.COMPARE
_STEER = Needs.SUBMIT
_SEEK = Needs.SEEK

ACTIONS: tuple[Action, ...] = (
    Action("app.command_palette", "ctrl+p", "Palette", "Find any action, kernel or idea by its name.", (_A,), footer=True),
    Action("app.help", "question_mark,f1", "Help", "Every key of this screen.", (_A,), footer=True),
    Action("app.dark", "f2", "Light/dark", "Change between the light and the dark theme.", (_A,)),
    Action("app.picture", "f12", "Picture", "Save what is on the screen as an SVG picture.", (_A,)),
    Action("app.suspend", "ctrl+z", "Suspend", "Back to the shell; `fg` comes back. What is under way waits.", (_A,)),
    Action("app.quit", "ctrl+q", "Quit", "Leave; what is under way goes on when it is opened next.", (_A,), footer=True),
    Action("home.start", "n", "New session", "Begin a session: problem, device, who decides, how long.", (_H,), footer=True),
    Action("home.steer", "o", "Open", "Go on with the session.", (_H,), footer=True),
    Action("home.replay", "r", "Replay", "Watch the session as it went.", (_H,), footer=True),
    Action("home.follow", "w", "Watch", "Follow a session that another process is running.", (_H,), footer=True),
    Action("home.delete", "delete,D", "Delete", "Remove the session's folder, after a question.", (_H,), footer=True),
    Action("home.refresh", "f5", "Refresh", "Read the list of sessions anew.", (_H,)),
    Action("gate.approve", "a,enter", "Approve", "The idea is worth compute.", (_G,), _STEER, True),
    Action("gate.approve_all", "A", "Approve all", "All ideas that await a decision are worth compute.", (_G,), _STEER, True),
    Action("gate.reject", "r", "Reject", "Not worth compute; the next question carries your reason.", (_G,), _STEER, True),
    Action("gate.edit", "e", "Edit", "Change its words, its parent, how many implementations.", (_G,), _STEER, True),
    Action("gate.write", "w", "Write it", "Write or paste the implementation yourself.", (_G,), _STEER, True),
    Action("gate.park", "k", "Park", "Not now: the idea waits outside its round and can be taken up later.", (_G,), _STEER),
    Action("gate.parent", "p", "Parent", "Aim the idea at another kernel.", (_G,), _STEER),
    Action("gate.writer", "W", "Writer", "Which source of code writes this idea.", (_G,), _STEER),
    Action("gate.material", "m", "Material", "Put a kernel beside the idea (this may help), or take it away.", (_G,), _STEER),
    Action("gate.up", "less_than_sign,shift+up", "Earlier", "Take the idea up before the one above it.", (_G,), _STEER),
    Action("gate.down", "greater_than_sign,shift+down", "Later", "Take the idea up after the one below it.", (_G,), _STEER),
    Action("gate.more", "plus", "More", "One implementation more of the idea.", (_G,), _STEER),
    Action("gate.fewer", "minus", "Fewer", "One implementation fewer of the idea.", (_G,), _STEER),
    Action("gate.earlier", "left_square_bracket", "Round before", "The ideas of the round before.", (_G,)),
    Action("gate.later", "right_square_bracket", "Next round", "The ideas of the next round.", (_G,)),
    Action("steer.idea", "i", "New idea", "Write an idea of your own.", (_S, _G), _STEER, True),
    Action("steer.seed", "s", "Seed", "Bring a kernel in: file, bank, another session, clipboard.", (_S, _G), _STEER, True),
    Action("steer.mode", "o", "Mode", "Who decides: you, you with patience, or the policy.", (_S, _G), _STEER, True),
    Action("steer.limits", "L", "Limits", "When the session stops by itself; more rounds reopen it.", (_S, _G), _STEER),
    Action("steer.pause", "P", "Pause", "Ask for no further ideas and code, or go on.", (_S, _G), _STEER),
    Action("steer.pauses", "C", "Pause at", "Where the session pauses by itself: tokens, dollars, a round.", (_S, _G), _STEER),
    Action("steer.answer", "Q", "Prompts", "Prompts given out by hand: copy one, bring the reply.", (_S, _G), _STEER),
    Action("steer.cancel_call", "K", "Cancel call", "Stop one open question to a model.", (_S, _G), _STEER),
    Action("steer.instruct", "I", "Instruct", "Standing instructions that every later prompt carries.", (_S, _G), _STEER),
    Action("steer.retry", "R", "Retry", "Try again what the engine itself failed at.", (_S, _G), _STEER),
    Action("steer.finish", "ctrl+e", "End", "End the session; what has not settled is cancelled.", (_S,), _STEER),
    Action("session.gate", "g", "Ideas", "The ideas: decide on those that wait, look at the others.", (_S,), footer=True),
    Action("session.pin", "p", "Pin", "Keep it among the parents of the next rounds, or let it go.", (_S,), _STEER, True),
    Action("session.prune", "x", "Prune", "Close the branch here, or take a pruned one up again.", (_S,), _STEER, True),
    Action("session.cancel", "c", "Cancel", "Stop a kernel that has not settled.", (_S,), _STEER),
    Action("session.again", "M", "Measure again", "Verify and measure a settled kernel afresh.", (_S,), _STEER),
    Action("session.race", "r", "Race", "Against the marked kernel or the best; more where undecided.", (_S,), _STEER),
    Action("session.race_best", "B", "Race the best", "The leaders again, interleaved, each against the best.", (_S,), _STEER),
    Action("session.accept", "a", "Believe", "Take a kernel out of quarantine, saying why.", (_S,), _STEER),
    Action("session.discard", "d", "Discard", "Fail a kernel in quarantine.", (_S,), _STEER),
    Action("session.note", "n", "Note", "Put words on the kernel.", (_S,), _STEER),
    Action("session.mark", "m", "Mark", "Mark the kernel, to compare another with it.", (_S,), footer=True),
    Action("session.compare", "v", "Compare", "The marked kernel and this one: numbers and code.", (_S,), footer=True),
    Action("session.cross", "X", "Cross", "One idea out of two kernels: the marked one and this one.", (_S,), _STEER),
    Action("session.attach", "A", "Attach", "Put the kernel beside an unwritten idea: this may help.", (_S,), _STEER),
    Action("session.fork", "F", "Fork", "Go on in a session of its own from an earlier point; this one stays.", (_S,)),
    Action("session.copy", "y", "Copy code", "Copy the kernel's source to the clipboard.", (_S, _C)),
    Action("session.best", "b", "Best", "Go to the best verified kernel.", (_S,)),
    Action("session.pane", "t", "Pane", "Change the pane: kernel, charts, story, notes, budget.", (_S,), footer=True),
    Action("session.budget", "dollar_sign", "Budget", "Tokens and dollars: by round, role and model.", (_S,)),
    Action("session.sort", "S", "Order", "Order the tree: as it grew, best branch first, or by speed alone.", (_S,)),
    Action("session.filter", "slash", "Filter", "Show only kernels whose id, title, author or outcome holds a text.", (_S,)),
    _tab(1, "idea", "The kernel's idea and lineage."),
    _tab(2, "code", "The kernel's source."),
    _tab(3, "diff", "What changed from its parent, or from the marked kernel."),
    _tab(4, "verification", "How right it is."),
    _tab(5, "timing", "Its samples and interval."),
    _tab(6, "machine", "Registers, shared memory, spills."),
    _tab(7, "log", "What the compiler and the trial said."),
    Action("session.zoom", "z", "Zoom", "Show the focused pane alone, or all again.", (_S,)),
    Action("session.home", "escape", "Home", "Back to the list of sessions; a search goes on meanwhile.", (_S,), footer=True),
    Action("replay.play", "space", "Play", "Play or pause.", (_S,), _SEEK, True),
    Action("replay.forward", "full_stop", "Step", "One event on.", (_S,), _SEEK),
    Action("replay.back", "comma", "Step back", "One event back.", (_S,), _SEEK),
    Action("replay.next_round", "right_square_bracket", "Next round", "To the next round.", (_S,), _SEEK, True),
    Action("replay.last_round", "left_square_bracket", "Round before", "To the round before.", (_S,), _SEEK),
    Action("replay.next_best", "right_parenthesis", "Next best", "To the next improvement.", (_S,), _SEEK, True),
    Action("replay.last_best", "left_parenthesis", "Best before", "To the improvement before.", (_S,), _SEEK),
    Action("replay.next_decision", "right_curly_bracket", "Next decision", "To the engineer's next decision.", (_S,), _SEEK),
    Action("replay.last_decision", "left_curly_bracket", "Decision before", "To the decision before.", (_S,), _SEEK),
    Action("replay.faster", "plus", "Faster", "Twice the speed.", (_S,), _SEEK),
    Action("replay.slower", "minus", "Slower", "Half the speed.", (_S,), _SEEK),
    Action("gate.back", "escape", "Back", "Back to the tree; what is undecided waits.", (_G,), footer=True),
    Action("compare.back", "escape", "Back", "Back to the tree.", (_C,), footer=True),
    Action("compare.swap", "x", "Swap", "Change the sides.", (_C,), footer=True),
)  # fmt: skip

_HELP = next(action for action in ACTIONS if action.id == "app.help")

_GROUPS = (
    ("Home", "home."), ("Ideas", "gate."), ("Steering", "steer."), ("Kernels", "session."), ("Replay", "replay."),
    ("Compare", "compare."), ("Anywhere", "app."),
)  # fmt: skip

_KEY_NAMES = {
    "question_mark": "?", "full_stop": ".", "comma": ",", "right_square_bracket": "]", "left_square_bracket": "[",
    "right_parenthesis": ")", "left_parenthesis": "(", "right_curly_bracket": "}", "left_curly_bracket": "{", "plus": "+",
    "minus": "-", "slash": "/", "escape": "Esc", "enter": "Enter", "space": "Space", "delete": "Del",
    "less_than_sign": "<", "greater_than_sign": ">", "dollar_sign": "$", "shift+up": "Shift-Up", "shift+down": "Shift-Down",
}  # fmt: skip


def key_names(keys: str) -> str:
    """Keys as they are printed on a keyboard: ``?, F1``."""
    return ", ".join(_key_name(key.strip()) for key in keys.split(","))


def _key_name(key: str) -> str:
    if key in _KEY_NAMES:
        return _KEY_NAMES[key]
    if key.startswith("ctrl+"):
        return f"Ctrl-{key[5:].upper()}"
    return key.upper() if len(key) > 1 else key


def actions(place: Place) -> tuple[Action, ...]:
    """The actions of one kind of screen, in the order of the registry."""
    return tuple(action for action in ACTIONS if place in action.places)


def bindings(place: Place) -> list[Binding]:
    """The bindings of one kind of screen, help first, so that the narrowest footer shows it."""
    here = [_binding(action, action.run) for action in actions(place)]
    return here if place is Place.ANYWHERE else [_binding(_HELP, f"app.{_HELP.run}"), *here]


def _binding(action: Action, run: str) -> Binding:
    shown = key_names(action.key).split(", ")[0]
    return Binding(action.key, run, action.label, show=action.footer, tooltip=action.help, id=action.id, key_display=shown)


def action_for(verb: str, place: Place) -> Action | None:
    """The action with this verb on this kind of screen."""
    return next((a for a in ACTIONS if a.verb == verb and (place in a.places or Place.ANYWHERE in a.places)), None)


def actions_by_group(place: Place | None = None) -> list[tuple[str, tuple[Action, ...]]]:
    """Actions by heading: all, or those of one kind of screen and those that work anywhere."""
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
    """The user's keys (action id → keys) from a TOML file, and its errors, one line each.

    A missing file is an empty one; invalid entries are skipped.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return {}, (f"{path} cannot be read, so the keys are the usual ones: {error}",)
    known = {action.id for action in ACTIONS}
    keys: dict[str, str] = {}
    errors: list[str] = []
    for name, value in _flatten(table):
        if name not in known:
            errors.append(f"{path}: there is no action {name!r}")
        elif not isinstance(value, str) or not value.strip():
            errors.append(f'{path}: {name} needs keys in quotes, for example "f7"')
        else:
            keys[name] = value
    return keys, tuple(errors)


def _flatten(table: Mapping[str, object]) -> list[tuple[str, object]]:
    """``[gate] approve = "y"`` and ``"gate.approve" = "y"`` mean the same."""
    found: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += [(f"{name}.{inner}", one) for inner, one in value.items()]
        else:
            found.append((name, value))
    return found


def key_table() -> str:
    """The README's key table, as Markdown."""
    lines: list[str] = []
    for title, found in actions_by_group():
        lines += [f"**{title}**", "", "| key | does | id |", "|---|---|---|"]
        lines += [f"| `{key_names(a.key)}` | {a.label}: {a.help} | `{a.id}` |" for a in found]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(key_table())
