"""The settings of a session: how it searches, when it stops or pauses automatically, and who approves ideas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from engine.domain.errors import EspalierError
from engine.domain.model import AGENT
from engine.domain.round_plan import CategoryRate

BASELINES = ("eager", "eager_tf32", "compile", "compile_max")
TOLERANCES = ("class", "class:fp32", "class:tf32", "class:half", "crfm", "kernelbench")
_MODE = re.compile(r"(ask|autopilot)|ask:([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Mode:
    """Who approves ideas: the engineer, the policy after ``seconds`` without an action, or the policy immediately."""

    name: str = "ask"
    """``ask`` or ``autopilot``."""
    seconds: int | None = None

    @classmethod
    def parse(cls, text: str) -> Mode | None:
        """Parse ``ask``, ``ask:SECONDS`` or ``autopilot``; ``None`` for anything else."""
        match = _MODE.fullmatch(text)
        if match is None or (match[2] is not None and int(match[2]) == 0):
            return None
        return cls(match[1]) if match[1] is not None else cls("ask", int(match[2]))

    def __str__(self) -> str:
        return self.name if self.seconds is None else f"{self.name}:{self.seconds}"

    @property
    def is_autopilot(self) -> bool:
        return self.name == "autopilot"


@dataclass(frozen=True, slots=True)
class Limits:
    """When a session closes automatically. ``None`` is no limit."""

    rounds: int | None = 3
    seconds: float | None = None
    kernels: int | None = None
    tokens: int | None = None
    usd: float | None = None
    plateau: int | None = 3
    """Rounds without a new incumbent."""
    light: float | None = 0.95
    """Fraction of the speed of light (SOL) at which the search stops."""
    raised_later: bool = False
    """Whether ``kernels`` is one turn's share of a budget over several problems, which a later turn raises."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """When a session pauses automatically until the engineer resumes it. ``None`` is never."""

    tokens: int | None = None
    """Above this many tokens spent."""
    usd: float | None = None
    """Above this many dollars spent."""
    round: int | None = None
    """Before this round opens."""


LARGEST_COUNT = 10_000
"""The largest limit of rounds, kernels and rounds without a new incumbent, and the latest round to pause at. More is a slip."""
LARGEST_SOL = 10
"""The largest fraction of the speed of light as a limit: a floor may be estimated too high. More is a percentage by mistake."""
LARGEST_LIMIT = 10**12
"""The largest number that another limit or a pause may be changed to. More digits are a slip."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How much a model may reason, as the providers name it. Each model accepts some of them."""
TEMPERATURES = (0.0, 2.0)
OUTPUTS = (256, 10_000_000)
"""Limits of the limit on a reply, in tokens."""
CONCURRENCIES = (1, 64)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of a call; ``None`` and the empty string leave the choice to the model's provider, or to the prompt."""

    effort: str = ""
    """One of ``EFFORTS``."""
    temperature: float | None = None
    max_output: int | None = None
    """Most tokens of a reply, reasoning included."""
    timeout: float | None = None
    """Seconds of one attempt."""

    def over(self, general: CallOptions) -> CallOptions:
        """These options; those that are not set come from ``general``."""
        return CallOptions(
            self.effort or general.effort,
            general.temperature if self.temperature is None else self.temperature,
            general.max_output if self.max_output is None else self.max_output,
            general.timeout if self.timeout is None else self.timeout,
        )


@dataclass(frozen=True, slots=True)
class ModelServer:
    """Where the models of a proposer are asked."""

    proposer: str
    """A proposer (``openai:NAME``), or a provider (``openai``) for all of its models."""
    url: str = ""
    """Base URL; empty for the provider's own server."""
    key: str = ""
    """The environment variable that holds the server's key; empty for the provider's own variable on its own server, and
    for none on any other server."""
    api: str = ""
    """``responses`` or ``chat`` for a server that speaks OpenAI's protocols; empty: ``responses`` on OpenAI's own."""


PATIENCE = 3600.0
"""Seconds for which a provider's rate limits and outages are waited out."""
CONCURRENCY = 4
"""Concurrent calls to one provider."""
PROFILING = True
"""Whether the hardware counters of a round's parents are read before a model is asked for ideas."""
ALL_ROLES = "all"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Who proposes and writes, where the models are asked, with which options. Can change during a session."""

    source: str = "playbook"
    """The proposer, or several with their shares (``openai:A=2,gemini:B=1``)."""
    writer: str = ""
    """Who writes the code; empty for the idea's author."""
    servers: tuple[ModelServer, ...] = ()
    options: Mapping[str, CallOptions] = field(default_factory=lambda: MappingProxyType({}))
    """By role of the call (``ideas``, ``code``, ``repair``), or ``all``."""
    patience: float = PATIENCE
    concurrency: int = CONCURRENCY
    profiling: bool = PROFILING

    def server(self, name: str) -> ModelServer | None:
        """The server of this proposer: its own entry, else its provider's."""
        provider = name.partition(":")[0]
        of = {server.proposer: server for server in self.servers}
        return of.get(name) or of.get(provider)

    def options_for(self, role: str) -> CallOptions:
        """The options of a role's calls."""
        return self.options.get(role, CallOptions()).over(self.options.get(ALL_ROLES, CallOptions()))


STRATEGIES = ("adaptive", "branching", "sequential")


def default_strategy(source: str, fleet: str) -> str:
    """The strategy of a new session that names none.

    The adaptive strategy tries one idea at a time, which leaves all workers of a fleet but one idle. And it chooses among
    ideas that it asks for, which nobody does for the agents of a session.
    """
    return "branching" if fleet or source == AGENT else "adaptive"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a session, recorded in its journal when it is created."""

    strategy: str = "branching"
    """``branching``, ``sequential`` or ``adaptive``; a session that names none gets ``default_strategy``."""
    ideas: int = 3
    """Ideas per round (K)."""
    branch: int = 3
    """Implementations of each idea (B)."""
    beam: int = 2
    """Number of best kernels that become parents of the next round."""
    repairs: int = 2
    """Most repairs of a kernel that fails to build or verify, if its author can repair."""
    source: str = "playbook"
    """The proposer, or several with their shares (``openai:A=2,gemini:B=1``)."""
    writer: str = ""
    """Who writes the code; empty for the idea's author."""
    base_url: str = ""
    """Server for ``openai:`` models that are not among ``servers``; empty for the provider's own."""
    servers: tuple[ModelServer, ...] = ()
    options: Mapping[str, CallOptions] = field(default_factory=lambda: MappingProxyType({}))
    """By role of the call, or ``all``."""
    patience: float = PATIENCE
    concurrency: int = CONCURRENCY
    profiling: bool = PROFILING
    recall: str = ""
    """Folder of a session whose recorded replies are reused for the same prompts at no cost."""
    workload: str = "small"
    suite: str = ""
    """The suite that kernels are judged on together; ``workload`` is then its first one. Empty for a single workload."""
    dialect: str = ""
    """What models are asked for and the naive port is written in; empty for ``cuda`` on a GPU and ``cpp`` on a CPU."""
    tolerance: str = "class"
    """``class``, ``class:fp32|tf32|half``, ``crfm`` or ``kernelbench``."""
    baseline: str = "eager"
    others: tuple[str, ...] = ()
    """Further baselines."""
    cold: bool = True
    """Measure with cold caches."""
    regime: str = ""
    """What decides: one of ``regimes.CHOICES``. Empty in sessions of older versions: single calls, the only ones measured."""
    seed: int = 0
    """Random seed of the search (not of a trial's inputs)."""
    accept_unverifiable: bool = False
    """Search even if a trivial model passes the correctness check; every verdict is marked then."""
    prior: tuple[CategoryRate, ...] = ()
    """What categories gained in other sessions, for the adaptive strategy and the prompts; empty without a prior."""
    limits: Limits = field(default_factory=Limits)
    pauses: Pauses = field(default_factory=Pauses)

    @property
    def models(self) -> ModelSettings:
        """The part that can change during the session."""
        named = {server.proposer for server in self.servers}
        base = (ModelServer("openai", self.base_url),) if self.base_url and "openai" not in named else ()
        return ModelSettings(
            self.source, self.writer, (*self.servers, *base), self.options, self.patience, self.concurrency,
            self.profiling,
        )  # fmt: skip


def check_choices(tolerance: str, baselines: Sequence[str], mode: str = "ask") -> None:
    """Raises EspalierError for a name that is none, before anything waits for a device."""
    if not baselines:
        raise EspalierError(f"no baseline is named: choose among {', '.join(BASELINES)}")
    for name in baselines:
        if name not in BASELINES:
            raise EspalierError(f"unknown baseline {name!r}: choose among {', '.join(BASELINES)}")
    if tolerance not in TOLERANCES:
        raise EspalierError(f"unknown tolerance {tolerance!r}: choose {', '.join(TOLERANCES)}")
    if Mode.parse(mode) is None:
        raise EspalierError(f"unknown mode {mode!r}: use ask, ask:SECONDS or autopilot")
