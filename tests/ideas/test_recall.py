"""Recorded replies are found by the meaning of a prompt, not by kernel ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain.model import Blob, CallRole, Usage
from engine.domain.state import SessionState
from engine.ideas.recall import recorded_replies

BLOBS: Mapping[Blob, str] = {
    b.digest(text): text
    for text in (
        "Build on k2 or k3.\n```cpp\nint k2;\n```\nThink of i1.",
        '{"ideas": [{"title": "Fuse k2", "parent": "k2"}, {"title": "Split", "parent": "k9"}]}',
    )
}
PROMPT, REPLY = BLOBS


def session(*sources: str, replied: bool = False) -> SessionState:
    """The root and kernels with this code, in this order."""
    drafted = [
        replace(b.drafted(f"k{n}", idea="i1", parent="k1"), source=b.digest(source)) for n, source in enumerate(sources, 2)
    ]
    asked = (
        e.CallStarted("c1", "propose:1", CallRole.IDEAS, "openai:gpt-test", PROMPT),
        e.CallAnswered("c1", REPLY, Usage(10, 0, 5), 0.1),
    )
    return b.fold(*b.first_round(), *drafted, *(asked if replied else ()))


def test_the_same_session_gets_identical_replies() -> None:
    state = session("wide", "deep", replied=True)
    found = recorded_replies(state, BLOBS.__getitem__).find("openai:gpt-test", BLOBS[PROMPT], state)
    assert found is not None
    assert (found.reply, found.usage, found.finish) == (BLOBS[REPLY], Usage(10, 0, 5), "stop")


def test_kernels_are_matched_by_code_not_by_id() -> None:
    recall = recorded_replies(session("wide", "deep", replied=True), BLOBS.__getitem__)
    other = session("deep", "wide")
    found = recall.find("openai:gpt-test", "Build on k3 or k2.\n```cpp\nint k2;\n```\nThink of i1.", other)
    assert found is not None
    assert '"parent": "k3"' in found.reply
    assert '"title": "Fuse k2"' in found.reply, "text outside the parent field stays unchanged"
    assert '"parent": "k9"' in found.reply


@pytest.mark.parametrize(
    ("model", "prompt"),
    [
        ("openai:another", BLOBS[PROMPT]),
        ("openai:gpt-test", BLOBS[PROMPT].replace("Think", "Dream")),
        ("openai:gpt-test", BLOBS[PROMPT].replace("int k2;", "int k3;")),
        ("openai:gpt-test", BLOBS[PROMPT].replace("k2 or k3", "k3 or k2")),
    ],
)
def test_a_different_prompt_or_model_gets_no_recorded_reply(model: str, prompt: str) -> None:
    state = session("wide", "deep", replied=True)
    assert recorded_replies(state, BLOBS.__getitem__).find(model, prompt, state) is None
