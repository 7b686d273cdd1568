"""A module's error as the engineer reads it, however long."""

from __future__ import annotations

import pytest

from engine.domain.errors import head_and_tail
from engine.trial.runner.runner import _error_text


def text_of(error: Exception) -> str:
    with pytest.raises(type(error)) as caught:
        raise error
    return _error_text(caught.value)


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    found = text_of(ValueError("first words " + "x" * 5_000_000 + " last words")).rstrip()
    assert len(found) < 5000
    assert "ValueError: first words x" in found.splitlines()[-1]
    assert found.endswith("x last words")
    assert "characters left out" in found


def test_a_message_of_long_lines_ends_with_its_first_ones() -> None:
    found = text_of(RuntimeError("\n".join(letter * 1_000_000 for letter in "abcde")))
    assert len(found) < 5000
    assert found.splitlines()[-1].startswith("RuntimeError: aaa")


def test_a_short_text_is_left_alone() -> None:
    assert head_and_tail("short", 5) == "short"
    assert head_and_tail("0123456789", 4) == "01 … 6 characters left out … 89"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "Torch not compiled with CUDA enabled",
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from\nhttp://…",
    ],
)
def test_a_kernel_for_a_gpu_says_so_on_a_cpu(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    last = _error_text(OSError(text)).splitlines()[-1]
    assert last == f"needs a GPU, and is judged on the CPU: OSError: {text.splitlines()[0]}"
    monkeypatch.setenv("ESPALIER_DEVICE", "cuda:0")
    assert "judged on the CPU" not in _error_text(OSError(text))


def test_other_errors_on_a_cpu_stay() -> None:
    assert _error_text(OSError("CUDA is a word")).splitlines()[-1] == "OSError: CUDA is a word"


def test_a_name_that_only_the_reference_defines_is_explained() -> None:
    last = _error_text(NameError("name 'math' is not defined")).splitlines()[-1]
    assert last == (
        "NameError: name 'math' is not defined in the kernel's file: import or define it there, even if the reference does"
    )


def test_a_text_that_cannot_be_encoded_is_escaped() -> None:
    text = _error_text(ValueError("no file \udc80"))
    text.encode()
    assert text.splitlines()[-1] == "ValueError: no file \\udc80"
    assert _error_text(NameError("\udc80")).endswith("import or define it there, even if the reference does")


def test_an_error_without_a_text_has_its_kind() -> None:
    class Silent(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert "Silent: <exception str() failed>" in _error_text(Silent("one"))
