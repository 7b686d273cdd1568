"""A session's settings → its source of ideas: playbook, models, people with a chat window, alone or sharing the rounds.

Nothing is opened and no key is looked for before a model is needed: a session on the playbook alone never comes near an SDK.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.domain.model import Settings
from engine.ideas.asking import ByHand, Desk
from engine.ideas.authoring import ModelSource
from engine.ideas.budget import Tariff, TariffOf
from engine.ideas.mix import PASTE, PLAYBOOK, Mix, check_source, parse_mix
from engine.ideas.models import prices, registry
from engine.ideas.models.model import Model
from engine.ideas.recall import Recall
from engine.ideas.source import IdeaSource

OpenModel = Callable[[str], Model]
"""A model by its name. Raises IdeaSourceError: no key, no such provider."""


def listed_tariff(model: str) -> Tariff | None:
    """What a model's tokens cost by the price list. Raises IdeaSourceError for a list that cannot be read."""
    found = prices.price(model)
    return partial(prices.cost, found) if found is not None else None


def open_ideas(
    settings: Settings,
    *,
    playbook: IdeaSource,
    open_model: OpenModel = registry.open_model,
    tariff_of: TariffOf = listed_tariff,
    recall: Recall | None = None,
) -> Mix:
    """The source that ``settings`` name; to be closed at the session's end.

    Args:
        settings: ``source`` (one, or several with shares) and ``writer``.
        playbook: the problem's, which also has the first port of every session.
        open_model: opens ``openai:NAME``, ``gemini:NAME`` and ``command:CMD``; called when one is first needed.
        tariff_of: what a model's tokens cost, if known.
        recall: replies of the session that this one begins from; then nothing new is spent before the engineer goes on.

    Raises:
        IdeaSourceError: ``source`` or ``writer`` names what is no source.
    """
    shares = parse_mix(settings.source)
    writer = check_source(settings.writer) if settings.writer else ""
    return Mix(shares, writer, _Opened(playbook, open_model, Desk(tariff_of, recall)))


class _Opened:
    """The sources of one session by name, behind one desk."""

    def __init__(self, playbook: IdeaSource, open_model: OpenModel, desk: Desk) -> None:
        self._open_model = open_model
        self._desk = desk
        self._models: list[Model] = []
        self._sources: dict[str, IdeaSource] = {PLAYBOOK: playbook, PASTE: ModelSource(ByHand(PASTE), desk)}

    def open(self, name: str) -> IdeaSource:
        if name not in self._sources:
            model = self._open_model(name)
            self._models.append(model)
            self._sources[name] = ModelSource(model, self._desk)
        return self._sources[name]

    async def close(self) -> None:
        while self._models:
            await self._models.pop().close()
