"""Creates the proposers that a session's settings name: playbook, models, pasted replies, alone or sharing the rounds.

A model is opened and its key is looked up on first use: a session that uses only the playbook never imports an SDK.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.domain.settings import Settings
from engine.ideas.authoring import ModelProposer
from engine.ideas.budget import Tariff, TariffOf
from engine.ideas.mix import PASTE, PLAYBOOK, Mix, check_proposer, parse_mix
from engine.ideas.model_calls import ByHand, ModelCalls
from engine.ideas.models import prices, registry
from engine.ideas.models.model import Model
from engine.ideas.proposer import Proposer
from engine.ideas.recall import Recall

OpenModel = Callable[[str], Model]
"""Opens a model by its name. Raises ProposerError: no key, unknown provider."""


def listed_tariff(model: str) -> Tariff | None:
    """The tariff of a model in the price list. Raises ProposerError if the list cannot be read."""
    price = prices.price(model)
    return partial(prices.cost, price) if price is not None else None


def open_ideas(
    settings: Settings,
    *,
    playbook: Proposer,
    open_model: OpenModel = registry.open_model,
    tariff_of: TariffOf = listed_tariff,
    recall: Recall | None = None,
) -> Mix:
    """The proposers that ``settings`` name. The caller closes them.

    Args:
        settings: ``source`` (one, or several with shares) and ``writer``.
        playbook: the problem's playbook, which also provides the naive port of every session.
        open_model: opens ``openai:NAME``, ``gemini:NAME`` and ``command:CMD``; called on first use.
        tariff_of: the tariff of a model, if known. Called once when a model is opened: an unreadable price list is reported
            before anything is spent.
        recall: replies of the session that this one starts from; the engineer confirms before anything new is spent.

    Raises:
        ProposerError: ``source`` or ``writer`` names an unknown proposer.
    """
    model_calls = ModelCalls(tariff_of, recall)

    def open_proposer(name: str) -> Proposer:
        if name == PLAYBOOK:
            return playbook
        if name == PASTE:
            return ModelProposer(ByHand(PASTE), model_calls)
        tariff_of(name)
        return ModelProposer(open_model(name), model_calls)

    return Mix(parse_mix(settings.source), check_proposer(settings.writer) if settings.writer else "", open_proposer)
