"""The benchmark beside KernelBench's evaluator: which kernels are paired, and how a run ends and is printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import evaluators

EVALUATOR = """
from types import SimpleNamespace
def eval_kernel_against_ref(reference, kernel, **options):
    assert options["build_dir"] and options["backend"] == "cuda"
    return SimpleNamespace(compiled="syntax" not in kernel, correctness="right" in kernel)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    prompts = tmp_path / evaluators._PROMPTS
    (prompts / "few_shot").mkdir(parents=True)
    for name, text in {
        "model_ex_add": "reference", "model_new_ex_add": "right", "model_new_ex_add_triton": "right",
        "model_new_ex_lone": "right",
        "few_shot/model_ex_add": "reference", "few_shot/model_new_ex_add": "wrong",
        "model_ex_0": "", "model_new_ex_0": "",
    }.items():  # fmt: skip
        (prompts / f"{name}.py").write_text(text)
    return tmp_path


def test_a_kernel_is_paired_with_the_reference_of_its_name_or_of_its_name_without_the_language(checkout: Path) -> None:
    assert [(pair.name, pair.reference.stem, pair.backend) for pair in evaluators.pairs(checkout)] == [
        ("few_shot/add", "model_ex_add", "cuda"), ("add", "model_ex_add", "cuda"), ("add_triton", "model_ex_add", "triton"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "status"), [("add", "correct"), ("few_shot/add", "build_failed")])
def test_the_evaluator_runs_as_its_scripts_call_it(checkout: Path, name: str, status: str) -> None:
    package = checkout / "src" / "kernelbench"
    (package / "__init__.py").write_text("")
    (package / "eval.py").write_text("import openai, litellm\n" + EVALUATOR)
    pair = next(one for one in evaluators.pairs(checkout) if one.name == name)
    pair.kernel.write_text("right" if status == "correct" else "syntax")
    found = evaluators.evaluated(pair, checkout, "cpu", 60.0)
    assert found.status == status
    assert found.seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('noise'); print('{\\n  \"status\": \"measured\"\\n}')", "measured"),
        ("import sys; sys.exit('no device')", "failed: no device"),
        ("import sys; sys.exit(3)", "failed: exit status 3"),
        ("import time; time.sleep(30)", "time_limit"),
    ],
)
def test_a_process_ends_with_a_verdict_a_reason_or_its_time_limit(code: str, status: str) -> None:
    assert evaluators._timed([sys.executable, "-c", code], {}, 3.0).status == status


def test_a_row_has_a_ratio_only_of_two_verdicts() -> None:
    pair = evaluators.Pair("add", Path(), Path(), "cuda")
    right, wrong = evaluators.Timed("correct", 60.0), evaluators.Timed("measured", 27.0)
    assert evaluators._row(pair, right, wrong).endswith("0.45")
    assert evaluators._row(pair, evaluators.Timed("failed: no CUDA", 2.0), wrong).endswith("-  no CUDA")


def test_a_folder_without_prompts_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluators.main([str(tmp_path)]) == 2
    assert "no chosen kernel" in capsys.readouterr().err
