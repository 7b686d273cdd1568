"""Options of a request that a server may lack or limit. What it rejects once is left out, or lowered, from then on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.domain.settings import EFFORTS
from engine.ideas.models.model import OnText, Prompt
from engine.ideas.models.output_limits import longest_reply, room_for_reply


class Option(StrEnum):
    """An option, by the name that the chat completions protocol gives it."""

    SCHEMA = "response_format"
    """Without it the prompt contains the schema."""
    OUTPUT = "max_completion_tokens"
    """Without it the request has the older ``max_tokens``."""
    USAGE = "stream_options"
    """Without it the server may report no usage."""
    EFFORT = "effort"
    TEMPERATURE = "temperature"
    THINKING = "thinking"
    CACHE = "prompt_cache"


SIGNS: Mapping[Option, tuple[str, ...]] = {
    Option.EFFORT: ("effort", "thinking_level", "thinkinglevel"),
    Option.TEMPERATURE: ("temperature",),
    Option.THINKING: ("thinking",),
    Option.CACHE: ("prompt_cache", "cache_control"),
    Option.OUTPUT: ("max_completion_tokens",),
    Option.USAGE: ("stream_options", "include_usage"),
    Option.SCHEMA: (
        "response_format", "text.format", "output_config.format", "json_schema", "schema", "structured", "guided", "grammar",
        "response_mime_type", "responsemimetype", "json mode", "output_format",
    ),
}  # fmt: skip
"""Words by which a server's error message names an option."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request. Another one, sent at the same time, may have taught something since."""

    request: dict[str, Any]
    prompt: Prompt
    output: int
    """Its limit on the tokens of the reply."""
    effort: str
    """The effort that it asks for, if any."""


class Learned:
    """What the errors of a server have shown about its options."""

    def __init__(self) -> None:
        self.refused: set[Option] = set()
        self.output_limit: int | None = None
        self._efforts: dict[str, str] = {}
        """An effort that was rejected → the nearest one that the server named."""

    def effort(self, prompt: Prompt) -> str:
        """The effort to send; empty for none."""
        wanted = prompt.options.effort
        return "" if Option.EFFORT in self.refused else self._efforts.get(wanted, wanted)

    def temperature(self, prompt: Prompt) -> float | None:
        return None if Option.TEMPERATURE in self.refused else prompt.options.temperature

    def learn(self, words: str, options: frozenset[Option], sent: Sent, on_text: OnText) -> int | None:
        """Learn from the message of a rejected request with these options; what was learnt is reported through ``on_text``.

        Returns the limit on the reply for another attempt, or ``None`` if the message is about nothing that can be left out
        or lowered.
        """
        if (limit := longest_reply(words, sent.output)) is not None:
            self.output_limit = limit
            on_text(f"\n[the server allows replies of at most {limit:,} tokens]\n")
            return limit
        if (room := room_for_reply(words, sent.output)) is not None:
            on_text(f"\n[the model's window leaves {room:,} tokens for this reply]\n")
            return room
        option = next((option for option, signs in SIGNS.items() if option in options and any(s in words for s in signs)), None)
        if option is None:
            return None
        if option is Option.EFFORT and self.effort(sent.prompt) != sent.effort:
            return sent.output
        if option is Option.EFFORT and (near := self._nearest_effort(words, sent.effort)):
            self._efforts[sent.prompt.options.effort] = near
            on_text(f"\n[the model does not know effort {sent.prompt.options.effort}: {near} is used]\n")
            return sent.output
        if option in (Option.EFFORT, Option.TEMPERATURE) and option not in self.refused:
            on_text(f"\n[the model does not accept {option.value}: left out]\n")
        self.refused.add(option)
        return sent.output

    def _nearest_effort(self, words: str, refused: str) -> str:
        """The effort nearest to the refused one among those that a message lists as supported."""
        _, listed, after = words.partition("supported")
        named = [effort for effort in EFFORTS if listed and f"'{effort}'" in after and effort != refused]
        if refused not in EFFORTS or refused in self._efforts.values():
            return ""
        return min(named, key=lambda effort: abs(EFFORTS.index(effort) - EFFORTS.index(refused)), default="")
