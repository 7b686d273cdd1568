"""Creates the proposers that a session's settings name: playbook, models, pasted replies, alone or sharing the rounds.

A model is opened and its key is looked up on first use: a session that uses only the playbook never imports an SDK.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from engine.domain.errors import ProposerError
from engine.domain.model import AGENT, PLAYBOOK
from engine.domain.settings import ModelSettings, Settings
from engine.ideas.agents import AgentProposer
from engine.ideas.authoring import ModelProposer
from engine.ideas.budget import Tariff, TariffOf
from engine.ideas.mix import PASTE, Mix, proposers_of
from engine.ideas.model_calls import ByHand, ModelCalls
from engine.ideas.models import prices, registry
from engine.ideas.models.command import missing_program
from engine.ideas.models.model import Model
from engine.ideas.models.providers import PROVIDERS
from engine.ideas.models.retry_policy import DEFAULT_POLICY, RetryPolicy
from engine.ideas.proposer import Proposer
from engine.ideas.recall import Recall

_PROBE_SECONDS = 5.0
OpenModel = Callable[[str, ModelSettings], Model]
"""Opens a model by its name, on its server. Raises ProposerError: no key, unknown provider."""


def open_listed(name: str, models: ModelSettings) -> Model:
    """Open a model on its server, with its key."""
    return registry.open_model(name, server=models.server(name), limits=registry.limits_of(models.concurrency))


def listed_tariff(model: str) -> Tariff | None:
    """The tariff of a model in the price list. Raises ProposerError if the list cannot be read."""
    price = prices.price(model)
    return partial(prices.cost, price) if price is not None else None


def open_ideas(
    settings: Settings,
    *,
    playbook: Proposer,
    open_model: OpenModel = open_listed,
    tariff_of: TariffOf = listed_tariff,
    recall: Recall | None = None,
    clock: Callable[[], float] = time.monotonic,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> Mix:
    """The proposers that ``settings`` name. The caller closes them.

    Args:
        settings: its ``models``; those of the session's state count once it runs.
        playbook: the problem's playbook, which also provides the naive port of every session.
        open_model: opens ``openai:NAME``, ``gemini:NAME`` and ``command:CMD``; called on first use.
        tariff_of: the tariff of a model, if known. Called once when a model is opened: an unreadable price list is reported
            before anything is spent.
        recall: replies of the session that this one starts from; the engineer confirms before anything new is spent.
        clock: seconds, by which patience is counted.
        policy: limits of each attempt, and the waits between attempts.

    Raises:
        ProposerError: ``source`` or ``writer`` names an unknown proposer.
    """
    model_calls = ModelCalls(tariff_of, recall, clock, policy)

    def open_proposer(name: str, models: ModelSettings) -> Proposer:
        if name == PLAYBOOK:
            return playbook
        if name == AGENT:
            return AgentProposer()
        if name == PASTE:
            return ModelProposer(ByHand(PASTE), model_calls)
        tariff_of(name)
        return ModelProposer(open_model(name, models), model_calls)

    return Mix(settings.models, open_proposer)


def check_prices(settings: Settings, tariff_of: TariffOf = listed_tariff) -> None:
    """Raises ProposerError if dollars are limited and a named model has no known price."""
    limits, pauses = settings.limits, settings.pauses
    if limits.usd is None and pauses.usd is None:
        return
    unknown = [
        name for name in proposers_of(settings.models) if name not in (PLAYBOOK, PASTE, AGENT) and tariff_of(name) is None
    ]
    if unknown:
        option = "--budget-usd" if limits.usd is not None else "--pause-above-usd"
        advice = f"add it to {prices.own_list()}, or limit tokens (--budget-tokens)"
        raise ProposerError(f"{option} cannot be enforced: the price of {unknown[0]} is unknown; {advice}")


def check_programs(models: ModelSettings) -> None:
    """Raises ProposerError if the program of a ``command:`` is not installed."""
    for name in proposers_of(models):
        if name.startswith("command:") and (program := missing_program(name.removeprefix("command:"))):
            raise ProposerError(f"{name}: the program {program!r} is not installed or not executable")


async def check_servers(models: ModelSettings) -> None:
    """Raises ProposerError if nothing answers at the address of a server that the user named, or of a preset on this machine.
    Sends nothing."""
    for name in proposers_of(models):
        server, preset = models.server(name), PROVIDERS.get(name.partition(":")[0])
        url = server.url if server is not None and server.url else preset.url if preset is not None and preset.free else ""
        if not url:
            continue
        parts = urlsplit(url)
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, port)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "no connection"
            raise ProposerError(
                f"{name}: nothing answers at {url} ({reason}): start the server, or correct --server"
            ) from None  # fmt: skip
        writer.close()
