"""What a client on standard input gets for lines that are no messages: an answer, so that it does not wait indefinitely."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.program import command, environment

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "odd", "version": "1"}}
PARSE_ERROR, INVALID_REQUEST = -32700, -32600


def answers(home: Path, *lines: bytes) -> list[dict[str, Any]]:
    """The answers of a server to a handshake, the lines and a ping, without those to the first and the last."""
    home.mkdir()
    hello = {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": HELLO}
    ping = {"jsonrpc": "2.0", "id": "ping", "method": "ping"}
    sent = (json.dumps(hello).encode(), *lines, json.dumps(ping).encode())
    done = subprocess.run(
        command("mcp"), input=b"".join(line + b"\n" for line in sent), capture_output=True, timeout=120, check=True,
        env=environment(home), cwd=home,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"hello", "ping"} <= {one["id"] for one in found}
    return [one for one in found if one["id"] not in ("hello", "ping")]


@pytest.mark.slow
def test_a_line_that_is_no_message_is_answered_and_a_blank_one_is_not(tmp_path: Path) -> None:
    request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": []}
    reply = {"jsonrpc": "2.0", "id": 8, "result": "a reply to nothing"}
    lines = (b"not JSON", b"", b"\xff", b"x" * 10_000_000, b"[]", json.dumps(request).encode(), json.dumps(reply).encode())
    found = answers(tmp_path / "home", *lines)
    assert [(one["id"], one["error"]["code"]) for one in found] == [
        (None, PARSE_ERROR), (None, PARSE_ERROR), (None, PARSE_ERROR), (None, INVALID_REQUEST), (7, INVALID_REQUEST),
        (None, INVALID_REQUEST),
    ]  # fmt: skip
    assert all(len(json.dumps(one)) < 400 for one in found)
