"""A session's settings → its proposers: playbook, models, replies pasted by hand, alone or sharing the rounds.

A model is opened and its key is looked up when it is first needed: a session on the playbook alone never imports an SDK.
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
"""A model by its name. Raises ProposerError: no key, no such provider."""


def listed_tariff(model: str) -> Tariff | None:
    """What a model's tokens cost by the price list. Raises ProposerError for a list that cannot be read."""
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
    """The proposers that ``settings`` name; to be closed at the session's end.

    Args:
        settings: ``source`` (one, or several with shares) and ``writer``.
        playbook: the problem's, which also provides the naive port of every session.
        open_model: opens ``openai:NAME``, ``gemini:NAME`` and ``command:CMD``; called when one is first needed.
        tariff_of: what a model's tokens cost, if known; called once when a model is opened, so that a price list that cannot
            be read is reported before anything is spent.
        recall: replies of the session that this one begins from; the engineer confirms before anything new is spent.

    Raises:
        ProposerError: ``source`` or ``writer`` names no proposer.
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
