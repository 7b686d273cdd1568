"""Runs a playbook's CUDA kernel on a CPU, as its launch plan says: tries addresses, descriptors and waits without a GPU.

The kernel's text is translated to C++ (``emulator.h`` says what is emulated) and compiled with the problem's header. Slow: for
shapes of a few thousand results.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from engine.domain.model import Dialect, Operand, Problem, Role, Workload
from engine.problem import header
from engine.problem.reference import Reference
from engine.toolchain.plan import parse_plan
from engine.toolchain.resolution import OperandArg, ResolvedLaunch, ResolvedPlan, ResolvedTensorMap, WorkspaceArg, resolve
from engine.toolchain.tunables import default_values, parse_tunables
from engine.trial.shared.layout import nbytes

_HERE = Path(__file__).parent
_SHARED = re.compile(r"^(\s*)__shared__ (\w+) ([^;]+);", re.MULTILINE)
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
_ASM = re.compile(r"\basm(?: volatile)?\s*\(")
_STRING = re.compile(r'\s*"((?:[^"\\]|\\.)*)"')

Inputs = tuple[object, ...]


class EmulatedKernel:
    """A kernel that is compiled for one workload on a device of ``units`` multiprocessors, with fresh inputs."""

    def __init__(
        self,
        problem: Problem,
        workload: Workload,
        code: str,
        tunables: Mapping[str, int],
        units: int,
        folder: Path,
        perturb: Callable[[Inputs], Inputs] = lambda inputs: inputs,
    ) -> None:
        """``folder``: an empty one, for its files. ``perturb``: changes the inputs."""
        reference = Reference(problem, workload)
        signature = reference.signature()
        chosen = {**default_values(parse_tunables(code, Dialect.CUDA)), **tunables}
        plan = resolve(parse_plan(code), {**header.plan_names(signature, units), **chosen}, signature.operands)
        (folder / "problem.h").write_text(header.render(signature, Dialect.CUDA, workload.name))
        together = "ld.relaxed.gpu" in code  # blocks wait for what others write
        (folder / "kernel.cpp").write_text(f"{translated(code)}\n{_entry(plan, signature.operands, together=together)}")
        for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda.h", "cooperative_groups.h"):
            (folder / name).write_text('#include "emulator.h"\n')
        defines = [f"-D{name}={value}" for name, value in chosen.items()]
        command = ["g++", "-O1", "-std=c++17", "-march=native", "-w", "-fmax-errors=5", f"-I{_HERE}", "-I.", *defines]
        subprocess.run([*command, "-include", "emulator.h", "-o", "kernel", "kernel.cpp"], cwd=folder, check=True)
        model, inputs = reference.model(1), perturb(reference.inputs(2))
        given = [tensor.contiguous() for tensor in reference.arguments(model, inputs)]
        read = [one.name for one in signature.operands if one.role is not Role.OUTPUT]
        for name, tensor in zip(read, given, strict=True):
            (folder / f"{name}.in").write_bytes(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        self._folder = folder
        self._outputs = [one for one in signature.operands if one.role is Role.OUTPUT]
        self._right = list(reference.exact(model, inputs).outputs)

    def largest_error(self, *, late: bool, slow: int = -1, newest_first: bool = False) -> float:
        """The largest difference from float64, in units of the root of the mean square; infinite for NaN.

        ``late``: what is asynchronous happens as late as the kernel's waits allow, else at once; ``newest_first``: copies then
        arrive before those that were asked for earlier. ``slow``: a warpgroup that runs only when the other threads wait.
        Raises AssertionError for a kernel that the emulator stops.
        """
        command = ["./kernel", str(late + newest_first), str(slow)]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return max(_error(self._read(one), right) for one, right in zip(self._outputs, self._right, strict=True))

    def _read(self, output: Operand) -> torch.Tensor:
        content = bytearray((self._folder / f"{output.name}.out").read_bytes())
        return torch.frombuffer(content, dtype=getattr(torch, output.dtype)).view(output.shape)


def _error(found: torch.Tensor, right: torch.Tensor) -> float:
    apart = (found.double() - right).abs() / right.square().mean().sqrt()
    return float(apart.nan_to_num(nan=float("inf")).max())


def translated(code: str) -> str:
    """CUDA as C++: shared memory and assembly are calls of the emulator."""
    code = _DYNAMIC.sub(r"\1* \2 = (\1*)emu::dynamic_shared();", code)
    counter = iter(range(1000))

    def shared(match: re.Match[str]) -> str:
        space, kind, names = match.groups()
        made = []
        for declared in names.split(","):
            name, size = re.fullmatch(r"\s*(\w+)((?:\[[^\]]*\])*)\s*", declared).groups()  # type: ignore[union-attr]
            made.append(f"auto& {name} = *({kind}(*){size})emu::static_shared({next(counter)}, sizeof({kind}{size}), 16);")
        return space + " ".join(made)

    return "".join(_without_assembly(_SHARED.sub(shared, code)))


def _without_assembly(code: str) -> Iterator[str]:
    end = 0
    for match in _ASM.finditer(code):
        if match.start() < end:
            continue
        yield code[end : match.start()]
        end = _closing(code, match.end())
        yield _call(code[match.end() : end - 1])
    yield code[end:]


def _closing(code: str, start: int) -> int:
    """The place after the parenthesis that closes one opened before ``start``."""
    depth, place = 1, start
    while depth:
        if text := _STRING.match(code, place):
            place = text.end()
            continue
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        place += 1
    return place


def _call(statement: str) -> str:
    """An asm statement as a call: its text, and its operands in order."""
    place, text = 0, ""
    while match := _STRING.match(statement, place):
        text, place = text + match[1], match.end()
    parts = _split(statement[place:].strip().removeprefix(":"), ":")
    outs, ins = ([_operand(one) for one in _split(part, ",") if one.strip()] for part in (*parts, "", "")[:2])
    operands = [*(f"emu::out({one})" for one in outs), *(f"emu::in({one})" for one in ins)]
    return f'emu::ptx("{text}", {{{", ".join(operands)}}})'


def _split(text: str, mark: str) -> list[str]:
    """The parts between marks outside of brackets, strings and ``::``."""
    parts, depth, place, begin = [], 0, 0, 0
    while place < len(text):
        if string := _STRING.match(text, place):
            place = string.end()
            continue
        letter = text[place]
        depth += 1 if letter in "([{" else -1 if letter in ")]}" else 0
        if letter == "?" and mark == ":":
            depth += 1  # its colon belongs to it
        elif letter == ":" and mark == ":" and depth:
            depth -= text[begin:place].count("?") > text[begin:place].count(":")
        elif letter == mark and not depth:
            parts.append(text[begin:place])
            begin = place + 1
        place += 1
    return [*parts, text[begin:]]


def _operand(text: str) -> str:
    """``"r"(value)``: the value."""
    return re.sub(r'^\s*"[^"]*"\s*', "", text)


def _entry(plan: ResolvedPlan, operands: Sequence[Operand], *, together: bool) -> str:
    """A program that reads the operands, launches as the plan says, and writes the outputs, which begin as NaN."""
    outputs = [one.name for one in operands if one.role is Role.OUTPUT]
    lines = [
        "int main(int count, char** words) {",
        "    emu::late = *words[1] > '0', emu::newest_first = *words[1] > '1', emu::slow = atoi(words[2]);",
        f"    std::vector<char> workspace({plan.workspace_bytes + 64}, (char)0xFF);",
        *(f'    std::vector<char> {one.name}_ = emu::memory("{one.name}.in", {nbytes(one)});' for one in operands),
        *(_map(one) for one in plan.tensor_maps),
        *(_launch(one, together=together) for one in plan.launches),
        *(f'    emu::keep("{name}.out", {name}_);' for name in outputs),
        "}",
    ]
    return "\n".join(lines)


def _map(one: ResolvedTensorMap) -> str:
    sizes = ", ".join(map(str, (one.item_bytes, *one.dims, *one.tile, one.swizzle)))
    start = f"{one.source.name}_.data()" if isinstance(one.source, OperandArg) else f"workspace.data() + {one.source.offset}"
    return f"    CUtensorMap {one.name}_map{{{start}, {sizes}}};"


def _launch(launch: ResolvedLaunch, *, together: bool) -> str:
    assert launch.grid[1:] == launch.block[1:] == launch.cluster[1:] == (1, 1)
    arguments = ", ".join(_argument(one) for one in launch.arguments)
    cluster = launch.grid[0] if launch.cooperative or together else launch.cluster[0]
    sizes = ", ".join(map(str, (launch.grid[0], launch.block[0], cluster)))
    return f"    emu::launch({sizes}, [&] {{ {launch.kernel}({arguments}); }});"


def _argument(one: object) -> str:
    match one:
        case OperandArg(name):
            return f"emu::Argument{{{name}_.data()}}"
        case WorkspaceArg(offset):
            return f"emu::Argument{{workspace.data() + {offset}}}"
    return f"emu::Argument{{&{one.name}_map}}"  # type: ignore[attr-defined]
