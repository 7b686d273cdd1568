"""Reads from a server's error how long a reply may be, so that a request can be repeated within the limit. Pure."""

from __future__ import annotations

import re

_LONGEST_REPLY = (
    re.compile(r"at most (\d[\d,]*) (?:completion|output) tokens", re.IGNORECASE),
    re.compile(r"expected a value <= (\d[\d,]*)", re.IGNORECASE),
    re.compile(r"max_tokens: \d[\d,]* > (\d[\d,]*), which is the maximum", re.IGNORECASE),
    re.compile(r"range of max\w*tokens is \[\d+, ?(\d[\d,]*)\]", re.IGNORECASE),
    re.compile(r"(?:maximum|max) (?:allowed )?(?:output|completion) tokens[^.\d]{0,40}(\d[\d,]*)", re.IGNORECASE),
)
_EXCLUSIVE = re.compile(r"supported range is from 1 \(inclusive\) to (\d[\d,]*) \(exclusive\)", re.IGNORECASE)
_WINDOW = re.compile(r"(?:maximum context length|context window|max_model_len)[^.\d]{0,30}(\d[\d,]*)", re.IGNORECASE)
_IN_PROMPT = (
    re.compile(r"(\d[\d,]*) (?:in the (?:messages|prompt|input)|of text input|input tokens|prompt tokens)", re.IGNORECASE),
    re.compile(r"(?:input|prompt)[^.\d]{0,30}?(\d[\d,]*) tokens", re.IGNORECASE),
)
_SUM = re.compile(r"(\d[\d,]*) \+ (\d[\d,]*) > (\d[\d,]*)")
_SHORTEST = 256
"""Tokens: a smaller limit is useless."""


def longest_reply(message: str, asked: int) -> int | None:
    """The limit on the tokens of any reply that an error message states, if it is below ``asked``."""
    for pattern in _LONGEST_REPLY:
        if match := pattern.search(message):
            return _usable(_number(match[1]), asked)
    match = _EXCLUSIVE.search(message)
    return _usable(_number(match[1]) - 1, asked) if match else None


def room_for_reply(message: str, asked: int) -> int | None:
    """The tokens that the model's window leaves for the reply to this prompt, if an error message states both."""
    if match := _SUM.search(message):
        prompt, window = _number(match[1]), _number(match[3])
    else:
        found = _WINDOW.search(message)
        sent = next((match for pattern in _IN_PROMPT if (match := pattern.search(message))), None)
        if found is None or sent is None:
            return None
        prompt, window = _number(sent[1]), _number(found[1])
    return _usable(window - prompt, asked)


def _number(digits: str) -> int:
    return int(digits.replace(",", "")[:12])


def _usable(limit: int, asked: int) -> int | None:
    return limit if _SHORTEST <= limit < asked else None
