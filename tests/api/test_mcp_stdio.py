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
    server = subprocess.Popen(
        command("mcp"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(home), cwd=home
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(b"".join(line + b"\n" for line in sent))
    server.stdin.flush()
    found: list[dict[str, Any]] = []
    while not found or found[-1]["id"] != "ping":  # a server whose client hangs up answers no more
        found.append(json.loads(server.stdout.readline()))
    rest, _ = server.communicate(timeout=120)
    assert (rest, server.returncode) == (b"", 0)
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


@pytest.mark.slow
def test_a_request_that_the_sdk_cannot_read_is_refused_by_its_id(tmp_path: Path) -> None:
    """JavaScript writes half an emoji, where a text was cut, as an escape that pydantic does not read."""
    half = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "\ud83d"}})
    deep = f'{{"jsonrpc":"2.0","id":"deep","method":"tools/call","params":{{"x":{"[" * 400}{"]" * 400}}}}}'
    found = answers(tmp_path / "home", half.encode(), deep.encode())
    assert [(one["id"], one["error"]["code"]) for one in found] == [(7, PARSE_ERROR), ("deep", PARSE_ERROR)]
    assert "surrogate" in found[0]["error"]["message"]


@pytest.mark.slow
def test_a_request_whose_id_nobody_can_answer_is_refused(tmp_path: Path) -> None:
    """JSON-RPC 2.0: the answer to a request whose id is not valid has the id null. MCP: an id is a text or a whole number."""
    ids = ("null", "1.5", "1e999", "NaN", "true", "[1]", "{}", '7,"id":null')
    lines = [f'{{"jsonrpc":"2.0","id":{one},"method":"ping"}}'.encode() for one in ids]
    notification = b'{"jsonrpc":"2.0","method":"notifications/unheard_of"}'
    found = answers(tmp_path / "home", *lines, notification)
    assert [(one["id"], one["error"]["code"]) for one in found] == [(None, INVALID_REQUEST)] * len(ids)


@pytest.mark.slow
def test_the_last_request_of_a_pipe_is_answered(tmp_path: Path) -> None:
    """Its input ends immediately after the request."""
    asked = (
        {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": HELLO},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "last", "method": "tools/call", "params": {"name": "list_problems", "arguments": {}}},
    )
    (home := tmp_path / "home").mkdir()
    sent = "".join(json.dumps(one) + "\n" for one in asked)
    done = subprocess.run(
        command("mcp"), input=sent, capture_output=True, text=True, env=environment(home), cwd=home, timeout=120, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["id"] for one in found] == ["hello", "last"]
    assert "softmax" in json.dumps(found[-1]["result"])
    assert done.returncode == 0
