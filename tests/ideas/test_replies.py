"""Parsing replies: strict about content, lenient about what surrounds it, and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_models import LAUNCH, code_reply, ideas_reply

from engine.domain.model import CATEGORIES, OTHER, Contract, Dialect
from engine.ideas.replies import IDEAS_SCHEMA, MAX_TITLE, MAX_WORDS, ReadIdea, ReplyError, read_code, read_ideas

PLAN = '// @launch k(x, out) grid(1) block(32)\nextern "C" __global__ void k(const float* x, float* out) { out[0] = x[0]; }\n'
MODULE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
ONE = '{"title": "Tile rows", "category": "memory access"}'


def _one(**fields: Any) -> ReadIdea:
    whole = {"title": "Tile rows", "category": "memory access", **fields}
    return read_ideas(json.dumps({"ideas": [whole]}), ("k2", "k1"))[0]


def test_a_reply_that_follows_the_schema() -> None:
    first, second = read_ideas(ideas_reply("Tile rows", "Hide latency"), ("k2", "k1"))
    assert (first.text.title, first.text.category, first.parent) == ("Tile rows", CATEGORIES[0], "k1")
    assert (first.text.predicted, first.text.expected, first.text.risks) == (1.5, "less time", "none")
    assert second.text.category == CATEGORIES[1]
    assert set(IDEAS_SCHEMA["properties"]["ideas"]["items"]["required"]) == set(json.loads(ideas_reply("x"))["ideas"][0])


@pytest.mark.parametrize(
    "reply",
    [
        f'{{"ideas": [{ONE}]}}',
        f'```json\n{{"ideas": [{ONE}]}}\n```',
        f'Certainly! [3] ideas {{of mine}}:\n\n{{"ideas": [{ONE}]}}\n\nHope this helps {{}}.',
        f"[{ONE}]",
        ONE,
        f'{{"ideas": [{ONE},],}}',
        f'\ufeff<think>perhaps {{"ideas": []}}?</think>\n{{"ideas": [{ONE}]}}',
        '{"ideas": [{"title": "Tile\nrows", "category": "memory access"}]}',
        f'{{"comment": "first", "ideas": [{ONE}, 7, {{"title": ""}}, {{"category": "memory access"}}]}}',
        f'{{"ideas": [{ONE}]}} and then {{"ideas": []}}',
    ],
)
def test_text_around_the_json_is_ignored(reply: str) -> None:
    assert [idea.text.title for idea in read_ideas(reply, ())] == ["Tile rows"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("", "no JSON object"),
        ("I have no ideas today.", "no JSON object"),
        ('{"ideas": [', "no JSON object"),
        ('{"ideas": []}', "list of ideas is empty"),
        ('{"ideas": ["Tile rows"]}', "not a JSON object"),
        ('{"ideas": [{"category": "memory access"}]}', "no title"),
        pytest.param("[" * 100_000, "no JSON object", id="deep"),
        pytest.param("x" * 4_000_001, "longer than", id="endless"),
    ],
)
def test_unusable_replies_are_rejected_with_one_line(reply: str, message: str) -> None:
    with pytest.raises(ReplyError, match=message) as error:
        read_ideas(reply, ())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Memory Access", "memory access"),
        ("memory-access", "memory access"),
        ("memory coalescing", "memory access"),
        ("latency hiding", "asynchrony and latency hiding"),
        ("Tensor Cores", "precision and tensor cores"),
        ("instruction", "instructions"),
        ("Occupancy & parallelism", "occupancy"),
        ("control-flow divergence", "control flow"),
    ],
)
def test_the_nearest_category_is_used(given: str, expected: str) -> None:
    assert _one(category=given).text.category == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1.5, 1.5), (2, 2.0), ("1.5x", 1.5), (" 3× ", 3.0), (0.9, 0.9), (0, None), (-1, None), (1e9, None), (True, None),
        (None, None), ("fast", None), ([1.5], None), ("nan", None), (10**400, None), (1e-9, None),
    ],
)  # fmt: skip
def test_a_prediction_is_a_factor_or_none(given: object, expected: float | None) -> None:
    assert _one(predicted_speedup=given).text.predicted == expected


@pytest.mark.parametrize(
    ("given", "expected"), [("k1", "k1"), ("the root, k1", "k1"), ("k9", "k2"), (None, "k2"), (7, "k2"), ("k9 or k1", "k1")]
)
def test_a_parent_is_one_of_the_offered_kernels(given: object, expected: str) -> None:
    assert _one(parent=given).parent == expected
    assert read_ideas(f"[{ONE}]", ())[0].parent is None


def test_text_is_cleaned_and_bounded() -> None:
    idea = _one(title="a\x1b[31m\u202e b\n\tc" + "x" * 500, rationale="word " * 10_000, risks=["one", 2, "two"]).text
    assert idea.title.startswith("a[31m b c")
    assert len(idea.title) == MAX_TITLE
    assert len(idea.rationale) <= MAX_WORDS
    assert idea.risks == "one; two"
    lone = read_ideas('{"ideas": [{"title": "x \\ud800 y", "category": "occupancy"}]}', ())
    assert lone[0].text.title.encode() == b"x y"


@pytest.mark.parametrize(
    ("reply", "dialect", "contract"),
    [
        (code_reply(), Dialect.CPP, Contract.HOST),
        (code_reply(LAUNCH, "C++"), Dialect.CPP, Contract.HOST),
        (code_reply(LAUNCH, ""), Dialect.CPP, Contract.HOST),
        (code_reply(LAUNCH, "cpp title=k.cpp"), Dialect.CPP, Contract.HOST),
        (code_reply(LAUNCH).replace("\n", "\r\n"), Dialect.CPP, Contract.HOST),
        (code_reply(LAUNCH).replace("```", "~~~~"), Dialect.CPP, Contract.HOST),
        (f"```cpp\nint x;\n```\nthen\n{code_reply()}```sh\n{'echo ' * 99}\n```", Dialect.CPP, Contract.HOST),
        (LAUNCH, Dialect.CPP, Contract.HOST),
        (f"\ufeff\n\n{LAUNCH}", Dialect.CPP, Contract.HOST),
        (f"<think>```cpp\n{'x' * 999}\n```</think>{code_reply()}", Dialect.CPP, Contract.HOST),
        (code_reply(PLAN, "cuda"), Dialect.CUDA, Contract.PLAN),
        (code_reply(LAUNCH, "cpp"), Dialect.CUDA, Contract.HOST),
        (PLAN, Dialect.CUDA, Contract.PLAN),
        (code_reply(MODULE, "python"), Dialect.PYTHON, Contract.MODULE),
        (f"````py\n{MODULE}X = '''\n```\n'''\n````", Dialect.PYTHON, Contract.MODULE),
        (MODULE, Dialect.PYTHON, Contract.MODULE),
    ],
)
def test_code_is_found(reply: str, dialect: Dialect, contract: Contract) -> None:
    code = read_code(reply, dialect)
    assert code.contract is contract
    assert code.text.endswith("\n")
    assert "\r" not in code.text


@pytest.mark.parametrize(
    ("reply", "dialect", "message"),
    [
        ("", Dialect.CPP, "no code"),
        ("I would tile it; then unroll {the loop}.", Dialect.CPP, "no code"),
        (f"```cpp\n{LAUNCH}", Dialect.CPP, "not closed"),
        (f"```cpp\nint x;\n```\n```cpp\n{LAUNCH}", Dialect.CPP, "not closed"),
        (code_reply(MODULE, "python"), Dialect.CUDA, "no code fence in cuda, only in python"),
        (code_reply("int x;\n"), Dialect.CPP, "no launch"),
        (code_reply("// @lauch k(x)\n" + PLAN, "cuda"), Dialect.CUDA, "line 1, column 5.*did you mean @launch"),
        (code_reply("// @tune B = x\n" + LAUNCH), Dialect.CPP, "line 1"),
        (code_reply("// @require (\n" + LAUNCH), Dialect.CPP, "line 1"),
        (code_reply("class Model:\n    pass\n", "python"), Dialect.PYTHON, "ModelNew"),
        pytest.param("```cpp\n" + LAUNCH + "x" * (1 << 20) + "\n```", Dialect.CPP, "larger than 1 MiB", id="huge"),
    ],
)
def test_invalid_code_is_rejected(reply: str, dialect: Dialect, message: str) -> None:
    with pytest.raises(ReplyError, match=message) as error:
        read_code(reply, dialect)
    assert "\n" not in str(error.value)


def test_control_characters_are_removed_from_code() -> None:
    code = read_code(code_reply("// a\x00\x1b[31m\u202eb\tc\n" + LAUNCH), Dialect.CPP)
    assert code.text.startswith("// a[31mb\tc\n")


FRAGMENTS = st.sampled_from(
    [
        "```", "```cpp\n", "~~~", "\n", "{", "}", "[", "]", '"', '"ideas"', ":", ",", "\\", "\\u", "k1", "1e999", "-", "NaN",
        "\x00", "\ud800", "// @tune A = 1\n", "// @require (((\n", "// @launch k(", "<think>", "</think>", "class ModelNew",
        LAUNCH, PLAN, ONE,
    ]
)  # fmt: skip
REPLIES = st.text(max_size=200) | st.lists(FRAGMENTS | st.text(max_size=5), max_size=30).map("".join)


@given(REPLIES, st.sampled_from(list(Dialect)))
def test_no_reply_raises_a_traceback(reply: str, dialect: Dialect) -> None:
    for read in (lambda: read_ideas(reply, ("k1",)), lambda: read_code(reply, dialect)):
        assert "\n" not in _complaint(read)


def _complaint(read: Callable[[], object]) -> str:
    try:
        read()
    except ReplyError as error:
        return str(error)
    return ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["k1", "occupancy"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ideas", "title", "category", "predicted_speedup", "parent", "risks"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_json_raises_a_traceback_and_parsed_ideas_are_valid(value: object) -> None:
    try:
        ideas = read_ideas(json.dumps(value), ("k1",))
    except ReplyError:
        return
    for idea in ideas:
        assert idea.text.title
        assert idea.text.title.isprintable()
        assert idea.text.category in (*CATEGORIES, OTHER)
        assert idea.parent == "k1"
        assert idea.text.predicted is None or 0 < idea.text.predicted <= 1000


@pytest.mark.parametrize(
    ("given", "category"),
    [
        ("luck", "other"),
        ("", "other"),
        ("Memory Access Patterns", "memory access"),
        ("kernel fusion", "control flow"),
        ("vectorization", "instructions"),
        ("TMA pipelining", "asynchrony and latency hiding"),
        ("parallelism", "occupancy"),
        ("mixed precision", "precision and tensor cores"),
    ],
)
def test_an_unknown_category_becomes_the_nearest_or_other(given: str, category: str) -> None:
    (idea,) = read_ideas(json.dumps({"ideas": [{"title": "x", "category": given}]}), ())
    assert idea.text.category == category


def test_a_truncated_reply_gives_all_its_complete_ideas() -> None:
    whole = json.dumps({"ideas": [{"title": f"Idea {n}", "category": "instructions"} for n in range(4)]})
    for end in range(len(whole)):
        complete = [n for n in range(4) if whole.find("}", whole.find(f"Idea {n}")) < end]
        if complete:
            assert [idea.text.title for idea in read_ideas(whole[:end], ())] == [f"Idea {n}" for n in complete]
