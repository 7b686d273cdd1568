"""Answers to what is not a message of JSON-RPC, or not one that the SDK answers: its client would wait for one."""

from __future__ import annotations

import json

from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, RequestId
from pydantic import ValidationError

_UNREAD = "the request holds half of a surrogate pair (such as \\ud83d alone), or is nested too deeply: send it again without"


def refused_id(text: str | bytes) -> JSONRPCError | None:
    """The answer to a request whose id is neither a text nor a whole number: the SDK takes it for a notification."""
    message = _read_leniently(text)
    if not isinstance(message, dict) or "method" not in message or "id" not in message or type(message["id"]) in (int, str):
        return None
    fault = ErrorData(code=INVALID_REQUEST, message="the id of a request is a text or a whole number: send it again with one")
    return JSONRPCError(jsonrpc="2.0", id=None, error=fault)


def refusal(error: ValidationError) -> JSONRPCError | None:
    """The answer to a line that is not a message. A request is found among the errors, as it lacks what a reply has."""
    faults = error.errors(include_url=False, include_context=False)
    if faults[0]["type"] == "json_invalid":
        if not str(faults[0]["input"]).strip():
            return None
        number = _id_of(_read_leniently(str(faults[0]["input"])))
        words = "the line is not JSON: send one JSON-RPC message per line" if number is None else _UNREAD
        return JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=PARSE_ERROR, message=words))
    whole = next((one["input"] for one in faults if one["type"] == "missing" and isinstance(one["input"], dict)), {})
    fault = ErrorData(code=INVALID_REQUEST, message="the line is not a JSON-RPC 2.0 message, or not one alone")
    return JSONRPCError(jsonrpc="2.0", id=_id_of(whole), error=fault)


def _id_of(message: object) -> RequestId | None:
    """The id of a request, if it has one that can be answered."""
    given = message.get("id") if isinstance(message, dict) and "method" in message else None
    return given if type(given) in (int, str) else None


def _read_leniently(text: str | bytes) -> object:
    """The message as Python reads it, which takes half a surrogate pair and deep nesting; ``None`` if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
