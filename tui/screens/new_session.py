"""The form for a new session, filled with defaults: Enter starts it.

The form starts the session and answers with its bridge; after an error it stays open with its content.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, VerticalScroll
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Button, Input, Label, Select, Static

from engine.domain import regimes
from engine.domain.errors import EspalierError, ProblemError, ProposerError
from engine.domain.model import Problem
from engine.domain.model_text import parse_duration
from engine.domain.settings import LARGEST_COUNT, Limits, Settings, default_strategy
from tui.bridge import Bridge, NewSession, check_dialect, check_settings, default_workload, find_problem, read_seed
from tui.opener import SessionOpener
from tui.removals import is_going
from tui.screens.dialogs import Dialog, show_beside
from tui.screens.open_session import FIRST_STEP
from tui.typed_paths import typed_path
from tui.viewmodel import fmt
from tui.viewmodel.cells import wrap
from tui.viewmodel.steps import StepLog

_MODES = (("ask", "ask"), ("ask, then auto-approve after 60 s", "ask:60"), ("autopilot", "autopilot"))
_STRATEGIES = (
    ("adaptive: the measurements decide", "adaptive"),
    ("branching: several ideas per round", "branching"),
    ("sequential: one idea after the other", "sequential"),
)
_PRIORS = (("earlier sessions (adaptive only)", "sessions"), ("none", "none"))
"""What the adaptive strategy starts from."""
_REGIMES = (
    ("auto: sustained on a GPU bound by operations", regimes.AUTO),
    ("single: one call at full clock decides", regimes.Regime.SINGLE.value),
    ("sustained: calls back to back decide", regimes.Regime.SUSTAINED.value),
)
_BASELINES = ("eager", "eager_tf32", "compile")
_SUITE = "suite "
"""How the choice of a suite begins; a workload's name has no space."""


def judged_on(problem: Problem) -> list[tuple[str, str]]:
    """What kernels can be judged on, as (label, choice): the workloads that are in no suite, or all, then the suites."""
    in_suites = {name for members in problem.suites.values() for name in members}
    alone = [one.name for one in problem.workloads if one.name not in in_suites] or [one.name for one in problem.workloads]
    suites = [(f"{_SUITE}{name} ({len(members)} workloads)", f"{_SUITE}{name}") for name, members in problem.suites.items()]
    return [*((name, name) for name in alone), *suites]


class NewSessionForm(Dialog[Bridge | None]):
    """Answers with the bridge to the new session, or ``None``."""

    CSS_PATH = "new_session.tcss"
    AUTO_FOCUS = "#start"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+s", "start", "Start"),
    ]

    def __init__(self, opener: SessionOpener, problem: str, make_room: Callable[[], Awaitable[bool]]) -> None:
        """``make_room``: closes another search that runs here, after asking; answers whether this one may start."""
        super().__init__()
        self._opener = opener
        self._make_room = make_room
        self._problem = problem
        self._steps = StepLog()
        self._field = ""
        """The field that is read."""
        self._shipped = {one.name: one for one in opener.problems()}
        self._choices = [("full", "full"), ("small", "small")]
        self._offered = ""

    def compose(self) -> ComposeResult:
        devices = self._opener.devices()
        with VerticalScroll(classes="form") as box:
            box.border_title = "New session"
            box.border_subtitle = "Ctrl-S: start · Esc: cancel"
            box.can_focus = False
            with Grid():
                yield Label("Problem")
                yield Input(
                    self._problem, id="problem", compact=True, placeholder="a name, a folder or a .py file",
                    suggester=SuggestFromList(self._shipped),
                )  # fmt: skip
                yield Label("Device")
                labels = [(Content(f"{label}  {name}"), label) for label, name in devices]
                yield Select(labels, value=devices[0][0], allow_blank=False, id="device", compact=True)
                yield Label("Workload")
                usual = default_workload(devices[0][0])
                yield Select(self._choices, value=usual, allow_blank=False, id="workload", compact=True)
                yield Label("Mode")
                yield Select(_MODES, value="ask", allow_blank=False, id="mode", compact=True)
                yield Label("Proposer")
                proposers = self._opener.proposers()
                hint = f"{', '.join(proposers)}, openai:MODEL, gemini:MODEL, command:CMD"
                yield Input(proposers[0], id="source", compact=True, placeholder=hint, suggester=SuggestFromList(proposers))
                yield Label("Strategy")
                yield Select(_STRATEGIES, value=default_strategy("", ""), allow_blank=False, id="strategy", compact=True)
                yield Label("Prior")
                yield Select(_PRIORS, value="sessions", allow_blank=False, id="prior", compact=True)
                yield Label("Rounds")
                yield Input("3", id="rounds", type="integer", compact=True)
                yield Label("Ideas per round")
                yield Input("3", id="ideas", type="integer", compact=True)
                yield Label("Kernels per idea")
                yield Input("3", id="branch", type="integer", compact=True)
                yield Label("Time limit")
                yield Input("", id="time", placeholder="none · 90s, 15m, 2h", compact=True)
                yield Label("Cost limit")
                yield Input("", id="usd", placeholder="none · dollars for models, such as 2.50", compact=True)
                yield Label("Baseline")
                yield Select([(b, b) for b in _BASELINES], value="eager", allow_blank=False, id="baseline", compact=True)
                yield Label("Regime")
                yield Select(_REGIMES, value=regimes.AUTO, allow_blank=False, id="regime", compact=True)
                yield Label("Seed kernel")
                yield Input("", id="seed", placeholder="none · a file, or SESSION:k7", compact=True)
                yield Static("", id="message", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Start", id="start", variant="primary", compact=True)

    def on_mount(self) -> None:
        self._offer_those_of(self._problem)
        self._read_those_of(self._problem)
        self.set_interval(0.5, self._show_step)

    def on_key(self, event: events.Key) -> None:
        """A character that is typed on a button begins another problem's name or path."""
        if event.is_printable and event.key != "space":
            self._give_to_problem(event, events.Key(event.key, event.character))

    def on_paste(self, event: events.Paste) -> None:
        """A text that is pasted on a button is another problem's name or path."""
        self._give_to_problem(event, events.Paste(" ".join(event.text.split())))

    def _give_to_problem(self, event: events.Event, copy: events.Event) -> None:
        """Focus the field, which selects its text, and let it replace that."""
        if isinstance(self.focused, Button) and not self.has_class("-starting"):
            event.stop()
            event.prevent_default()
            field = self.query_one("#problem", Input)
            self.set_focus(field)
            field.post_message(copy)

    @on(Select.Changed, "#device")
    def _device_changed(self, event: Select.Changed) -> None:
        self._offer(default_workload(str(event.value)))

    @on(Input.Changed, "#problem")
    def _problem_changed(self, event: Input.Changed) -> None:
        """The workloads and suites of a shipped problem, as soon as its name is complete."""
        self._offer_those_of(event.value.strip())

    def _offer_those_of(self, shipped: str) -> None:
        if shipped in self._shipped and shipped != self._offered:
            self._choices = judged_on(self._shipped[shipped])
            self._offered = shipped
            self._offer(self._chosen("workload"))

    @on(Input.Blurred, "#problem")
    def _problem_left(self, event: Input.Blurred) -> None:
        self._read_those_of(typed_path(event.value))

    def _read_those_of(self, name: str) -> None:
        """Those of a folder or a file, once its path is complete. A wrong path is told when the session starts."""
        if name and name != self._offered:
            with contextlib.suppress(EspalierError):
                self._choices = judged_on(find_problem(name))
                self._offered = name
                self._offer(self._chosen("workload"))

    def _offer(self, wanted: str) -> None:
        select = self.query_one("#workload", Select)
        select.set_options(self._choices)
        values = [value for _, value in self._choices]
        usual = default_workload(self._chosen("device"))
        select.value = next((one for one in (wanted, usual) if one in values), values[0])

    @on(Input.Submitted)
    @on(Button.Pressed, "#start")
    def action_start(self) -> None:
        """Start the session."""
        if self.has_class("-starting"):
            return
        try:
            request = self._request()
        except EspalierError as error:
            self._show_error(str(error), self._field)
            return
        self.add_class("-starting")
        self._say(FIRST_STEP)
        self._begin(request)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``; a session that is starting is abandoned."""
        self.workers.cancel_group(self, "begin")
        self.dismiss(None)

    @work(exclusive=True, group="begin")
    async def _begin(self, request: NewSession) -> None:
        if not await self._make_room():
            self.remove_class("-starting")
            self._show_error("")
            return
        try:
            bridge = await self._opener.begin(request, self._say)
        except EspalierError as error:
            if not is_going(self):
                self.remove_class("-starting")
                self._show_error(str(error), "source" if isinstance(error, ProposerError) else "")
                if not isinstance(error, ProposerError):
                    self.query_one("#start").focus()
        else:
            self.dismiss(bridge)

    def _show_error(self, text: str, field: str = "") -> None:
        self._steps = StepLog()
        self.query_one("#message", Static).add_class("-wrong")
        show_beside(self, field, text)

    def _say(self, text: str) -> None:
        if is_going(self):
            return
        show_beside(self, "", "")
        self._steps.add(text, time.monotonic())
        self._show_step()

    def _show_step(self) -> None:
        """The running step with its elapsed time."""
        step = self._steps.running
        if self._steps.steps and not is_going(self):
            seconds = int(time.monotonic() - step.began) if step is not None else 0
            message = self.query_one("#message", Static)
            message.remove_class("-wrong")
            words = f"Starting{f': {step.text}' if step is not None else ''} …{f' {fmt.elapsed(seconds)}' if seconds else ''}"
            message.update("\n".join(wrap(words, message.content_size.width or len(words))))

    def _request(self) -> NewSession:
        """The session as the form describes it. Raises EspalierError for invalid input."""
        self._field = "problem"
        problem = find_problem(typed_path(self._text("problem")))
        judged, suite = self._chosen("workload").removeprefix(_SUITE), self._chosen("workload").startswith(_SUITE)
        seed = typed_path(self._text("seed"))
        limits = Limits(rounds=self._count("rounds", "Rounds", LARGEST_COUNT), seconds=self._seconds(), usd=self._dollars())
        settings = replace(
            Settings(),
            strategy=self._chosen("strategy"),
            ideas=self._count("ideas", "Ideas per round", 64),
            branch=self._count("branch", "Kernels per idea", 64),
            source=self._text("source"),
            workload=default_workload(self._chosen("device")) if suite else judged,
            suite=judged if suite else "",
            baseline=self._chosen("baseline"),
            regime=self._chosen("regime"),
            limits=limits,
        )
        self._field = "source"
        check_settings(settings.models)
        self._field = "seed"
        seeds = (read_seed(seed, {}, problem),) if seed else ()
        for one in seeds:
            check_dialect(one.kernel, self._chosen("device"))
        prior = self._chosen("prior") == "sessions"
        return NewSession(problem, self._chosen("device"), settings, self._chosen("mode"), seeds=seeds, prior=prior)

    def _text(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value.strip()

    def _chosen(self, name: str) -> str:
        return str(self.query_one(f"#{name}", Select).value)

    def _count(self, name: str, label: str, most: int) -> int:
        self._field = name
        text = self._text(name)
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise ProblemError(f"{label}: enter a number from 1 to {most}")
        return int(text)

    def _dollars(self) -> float | None:
        self._field = "usd"
        text = self._text("usd").removeprefix("$")
        if not text:
            return None
        try:
            amount = float(text)
        except ValueError:
            amount = 0.0
        if not 0 < amount < 1e9:
            raise ProblemError(f"Cost limit: {text} is not an amount in dollars; enter 2.50, or leave it empty")
        return amount

    def _seconds(self) -> float | None:
        self._field = "time"
        text = self._text("time")
        if not text or text == "none":
            return None
        try:
            return parse_duration(text)
        except ValueError as error:
            raise ProblemError(f"Time limit: {error}") from None
