"""Which strategy a session gets that names none."""

from __future__ import annotations

import pytest

from engine.domain.settings import default_strategy


@pytest.mark.parametrize(
    ("source", "fleet", "strategy"),
    [
        ("playbook", "", "adaptive"),
        ("openai:model", "", "adaptive"),
        ("paste", "", "adaptive"),
        ("agent", "", "branching"),
        ("playbook", "local:2", "branching"),
        ("openai:model", "ray", "branching"),
        ("agent", "local", "branching"),
    ],
)
def test_the_session_decides_adaptively_unless_workers_or_agents_would_wait(source: str, fleet: str, strategy: str) -> None:
    assert default_strategy(source, fleet) == strategy
