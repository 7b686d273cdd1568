"""Writes ``prompts/``: for each shipped problem the prompts for ideas, code and repairs, on an H200 and on a CPU.

``python tests/golden/make_prompts.py`` writes them anew. Whoever changes a prompt reads what changed here, as a model will. The
H200's are those of the shipped sessions at the beginning of round 2. The CPU's are those of ``cpu/``: the beginnings of
sessions (``espalier run PROBLEM --device cpu --headless --rounds 1 --ideas 1 --branch 1``) on a shared machine with two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]

from engine.domain import events as e  # noqa: E402
from engine.domain.folds import advance  # noqa: E402
from engine.domain.mismatch import Mismatch, Observation, Pattern, WrongElement  # noqa: E402
from engine.domain.model import Author, Dialect, Failure, FailureKind, Role  # noqa: E402
from engine.domain.state import Idea, Kernel, SessionState, Stage  # noqa: E402
from engine.ideas.models.model import Prompt  # noqa: E402
from engine.ideas.prompts import compose  # noqa: E402
from engine.ideas.proposer import CodeRequest, IdeaRequest, RepairRequest  # noqa: E402
from engine.journal import journal  # noqa: E402
from engine.journal.blobs import Blobs  # noqa: E402

GOLDEN = Path(__file__).resolve().parent / "prompts"
SESSIONS = CHECKOUT / "sessions"
CPU_SESSIONS = Path(__file__).resolve().parent / "cpu"
MODEL = Author("openai:some-model")
OTHER_DIALECTS = {"softmax": (Dialect.TRITON, Dialect.PYTHON), "matmul_fp16": (Dialect.TRITON,)}
"""Problem → the dialects whose prompts are written beside CUDA's."""


def prompts() -> Iterator[tuple[str, str]]:
    """(file name, text) of every golden prompt."""
    for name, prompt in _prompts():
        yield f"{name}.md", compose.prompt_text(prompt)


def _prompts() -> Iterator[tuple[str, Prompt]]:
    for folder in _sessions(SESSIONS):
        begun, proposed, blobs = _round(folder, min(2, _rounds(folder)))
        assert begun.opened is not None
        own = Dialect(begun.opened.settings.dialect or Dialect.CUDA)
        yield f"{folder.name}.h200.ideas", _ideas(begun, blobs, own)
        yield f"{folder.name}.h200.code", _code(proposed, blobs, own)
        yield f"{folder.name}.h200.repair", _repair(begun, blobs)
        for dialect in OTHER_DIALECTS.get(folder.name, ()):
            yield f"{folder.name}.h200.ideas_{dialect}", _ideas(begun, blobs, dialect)
            yield f"{folder.name}.h200.code_{dialect}", _code(proposed, blobs, dialect)
    for folder in _sessions(CPU_SESSIONS):
        begun, proposed, blobs = _round(folder, 1)
        yield f"{folder.name}.cpu.ideas", _ideas(begun, blobs, Dialect.CPP)
        yield f"{folder.name}.cpu.code", _code(proposed, blobs, Dialect.CPP)


def _sessions(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if (path / journal.NAME).exists())


def _rounds(folder: Path) -> int:
    return max(one.event.round for one in journal.read(folder).entries if isinstance(one.event, e.RoundOpened))


def _round(folder: Path, number: int) -> tuple[SessionState, SessionState, Blobs]:
    """The states at the opening of a round and after its ideas."""
    entries = journal.read(folder).entries
    opened = next(n for n, one in enumerate(entries) if isinstance(one.event, e.RoundOpened) and one.event.round == number)
    asked = next(n for n, one in enumerate(entries) if n > opened and isinstance(one.event, e.IdeasProposed))
    begun = advance(SessionState(), entries[: opened + 1])
    return begun, advance(begun, entries[opened + 1 : asked + 1]), Blobs(folder)


def _parents(state: SessionState) -> tuple[str, ...]:
    return state.rounds[max(state.rounds)].parents


def _ideas(state: SessionState, blobs: Blobs, dialect: Dialect) -> Prompt:
    code = {name: blobs.text(state.kernels[name].source) for name in _parents(state)}
    remarks = {name: blobs.text(log) for name in code if (log := state.kernels[name].build_log)}
    return compose.ideas(IdeaRequest(state, max(state.rounds), _parents(state), 3, dialect, code), MODEL, 5, remarks)


def _code(state: SessionState, blobs: Blobs, dialect: Dialect) -> Prompt:
    idea = _new_idea(state)
    request = CodeRequest(state, idea, dialect, blobs.text(state.kernels[idea.parent or ""].source))
    return compose.code(request, compose.Turn(1, 2, ()))


def _new_idea(state: SessionState) -> Idea:
    """The first idea of the latest round that changes code."""
    new = (idea for idea in state.ideas.values() if idea.round == max(state.rounds))
    return next(idea for idea in new if not idea.text.key.startswith("tune:"))


def _repair(state: SessionState, blobs: Blobs) -> Prompt:
    kernel = state.kernels[_parents(state)[0]]
    reason = "call 2: centred error 1.00e-01, worst element 4.00e-01 of its scale"
    wrong = Failure(FailureKind.MISMATCH, reason, mismatches=(_mismatch(state),))
    code = blobs.text(kernel.source)
    broken: Kernel = replace(kernel, stage=Stage.REPAIR, failure=wrong, measurement=None, verification=None)
    earlier = (("// the first attempt\n", Failure(FailureKind.BUILD_FAILED, "line 7: expected ';'")),)
    return compose.repair(RepairRequest(state, broken, code, wrong.reason, "", earlier=earlier))


def _mismatch(state: SessionState) -> Mismatch:
    """A kernel that leaves out the last indices of the last dimension."""
    assert state.preparation is not None
    shape = state.preparation.signature.with_roles(Role.OUTPUT)[0].shape
    size, last = 1, shape[-1]
    for extent in shape:
        size *= extent
    start = last - 5
    place = ", ".join([":"] * (len(shape) - 1))
    text = f"the last 5 of {last} indices of dimension {len(shape) - 1}: out[{place}, {start}:{last}]"
    seen = Observation(Pattern.TAIL, text, "the end of the last dimension")
    example = WrongElement((*[0] * (len(shape) - 1), start), 0.71828, 0.0, 0.4, written=False)
    limit = state.preparation.gate.max_scaled_limit
    return Mismatch("out", shape, size // last * 5, size, limit, (seen,), (example,), call=2)


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.md"):
        old.unlink()
    for name, text in prompts():
        (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
