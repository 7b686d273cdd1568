"""Settings of models as text: what is written is read back, and what makes no sense is one line that names the setting."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model_text import ROLES, duration_text, models_text, parse_duration, parse_models, parse_server, server_text
from engine.domain.settings import EFFORTS, CallOptions, ModelServer, ModelSettings

DURATIONS = st.one_of(st.integers(1, 10**6).map(float), st.floats(0.001, 1e5).map(lambda x: round(x, 3)))
OPTIONS = st.builds(
    CallOptions,
    st.sampled_from(["", *EFFORTS]),
    st.none() | st.floats(0, 2).map(lambda x: round(x, 3)),
    st.none() | st.integers(256, 10_000_000),
    st.none() | DURATIONS,
)
SERVERS = st.builds(
    ModelServer,
    st.sampled_from(["openai", "vllm", "vllm:qwen/q3-8b", "azure:my-deployment"]),
    st.sampled_from(["", "http://gpu1:8000/v1", "https://h/v1?a=b"]),
    st.sampled_from(["", "GATEWAY_KEY"]),
    st.sampled_from(["", "chat", "responses"]),
)
MODELS = st.builds(
    ModelSettings,
    st.sampled_from(["playbook", "openai:gpt-5=2,vllm:qwen=1"]),
    st.sampled_from(["", "anthropic:claude"]),
    st.lists(SERVERS, max_size=3).map(tuple),
    st.dictionaries(st.sampled_from([str(role) for role in ROLES]), OPTIONS.filter(lambda o: o != CallOptions()), max_size=4),
    st.just(0.0) | DURATIONS,
    st.integers(1, 64),
)


@given(MODELS)
def test_settings_are_read_back_as_they_are_written(models: ModelSettings) -> None:
    assert parse_models(models_text(models), ModelSettings()) == models


@given(SERVERS)
def test_a_server_is_read_back_as_it_is_written(server: ModelServer) -> None:
    assert parse_server(server_text(server)) == server


@given(DURATIONS)
def test_a_duration_is_read_back_as_it_is_written(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds)


def test_options_are_written_by_role() -> None:
    models = replace(ModelSettings(), options={"all": CallOptions("high", 0.5), "code": CallOptions("max", timeout=3600.0)})
    texts = models_text(models)
    assert (texts["effort"], texts["temperature"], texts["timeout"]) == ("high code=max", "0.5", "code=1h")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("servers", "vllm", "servers: 'vllm' is not a server: write NAME=URL"),
        ("servers", "vllm=http://h/v1,key=sk-0123", "names the environment variable"),
        ("servers", "vllm=http://h/v1,host=x", "unknown 'host' of a server"),
        ("effort", "huge", "effort: unknown value 'huge': use none, minimal"),
        ("effort", "poetry=high", "unknown role 'poetry': use all, ideas"),
        ("temperature", "3", "'3' is not a number from 0 to 2"),
        ("temperature", "nan", "is not a number from 0 to 2"),
        ("max_output", "code=12", "max output: '12' is not a whole number from 256 to 10,000,000"),
        ("max_output", "\u0661\u0662\u0663\u0664", "is not a whole number"),
        ("timeout", "0s", "timeout: '0s' is too short: give a time above zero"),
        ("patience", "soon", "patience: 'soon' is not a duration"),
        ("patience", "", "patience: '' is not a duration"),
        ("concurrency", "65", "concurrency: '65' is not a whole number from 1 to 64"),
    ],
)
def test_what_makes_no_sense_names_the_setting(name: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_models({**models_text(ModelSettings()), name: text}, ModelSettings())
