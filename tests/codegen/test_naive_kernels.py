"""Naive kernels end to end: trace, generate, compile with g++, call, compare with the reference in float64.

Every module is checked twice: as C++ under the host contract, and as CUDA under the plan contract, whose kernels run on the
CPU as their own @launch lines say, one thread long (their loops stride over the whole grid).
"""

from __future__ import annotations

import copy
import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.codegen.naive import naive
from engine.domain.errors import ToolchainError
from engine.domain.model import Contract, Dialect, Operand, Role, Signature, Workload
from engine.problem import catalog, header, names
from engine.problem.arguments.values import tensors
from engine.problem.graph import trace, trace_reference
from engine.problem.graph_ir import Graph
from engine.problem.reference import Reference
from engine.toolchain.compilers import find_nvcc
from engine.toolchain.expressions import evaluate
from engine.toolchain.plan import NameRef, parse_plan
from engine.toolchain.plan import Reference as PlanReference

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]  # one compiler call for all cases


class Lambda(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


@dataclass(frozen=True)
class Case:
    """A problem ready for a check: the operands, the output of eager, the expected output."""

    signature: Signature
    graph: Graph
    arguments: tuple[Tensor, ...]
    eager: tuple[Tensor, ...]
    exact: tuple[Tensor, ...]


def overwrite(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 1.0
    y[:, 1:3, ::2] *= 2
    return y


def interleave(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[..., ::2] = x[..., ::2]
    y[..., 1::2] = x[..., 1::2].exp()
    return y


def fill_memory(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype)
    y[...] = x + x
    return y


def with_places(x: Tensor) -> tuple[Tensor, ...]:
    """LeetGPU's references write so."""
    product, sums, highest = x.new_zeros(4, 8, 8), x.new_empty(2, 4, 6), x.new_empty(2, 8, 6)
    where = torch.zeros(2, 8, 6, dtype=torch.int64)
    torch.matmul(x[0], x[1].transpose(-1, -2), out=product)
    torch.sum(x, 2, out=sums)
    torch.max(x, dim=1, out=(highest, where))
    torch.softmax(x[0], 0, out=x[1])
    return product, sums, highest, where, x + 1


def rotary(x: Tensor) -> Tensor:
    place = torch.arange(x.shape[-2], dtype=x.dtype)
    angle = torch.outer(place, 1.0 / 100 ** (torch.arange(0, 6, 2, dtype=x.dtype) / 6))
    one, two = x[..., ::2], x[..., 1::2]
    turned = (one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos())
    return torch.stack(turned, -1).flatten(-2)


IMAGES, ROWS, VOLUMES = (2, 4, 8, 6), (2, 4, 16), (2, 4, 5, 6, 7)
INPLACE = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True))

LAYERS: dict[tuple[int, ...], Sequence[nn.Module]] = {
    IMAGES: (
        nn.Sequential(nn.Linear(6, 5), nn.ReLU()), INPLACE, nn.GELU(), nn.GELU("tanh"), nn.Tanh(), nn.Sigmoid(), nn.SiLU(),
        nn.Mish(), nn.Softplus(), nn.ELU(), nn.Hardtanh(), nn.LeakyReLU(), nn.SELU(), nn.Hardswish(), nn.Hardsigmoid(),
        nn.LogSigmoid(), nn.Softsign(), nn.PReLU(4), nn.ReLU6(), nn.Softmin(1), nn.GLU(1),
        nn.BatchNorm2d(4), nn.BatchNorm2d(4).eval(), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm(6), nn.Softmax(1),
        nn.LogSoftmax(1), nn.Conv2d(4, 4, 3, padding=1, stride=2), nn.Conv2d(4, 4, 3, groups=4, dilation=2), nn.Conv2d(4, 3, 1),
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), nn.ConvTranspose2d(4, 6, 3, groups=2),
        nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, return_indices=True), nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), nn.AdaptiveAvgPool2d((3, 4)), nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveMaxPool2d(3), nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.PixelShuffle(2),
        nn.ReflectionPad2d(2), nn.ReplicationPad2d(2), nn.ZeroPad2d(1), nn.Unfold(2), nn.Flatten(), nn.ChannelShuffle(2),
    ),
    ROWS: (
        nn.Conv1d(4, 4, 3), nn.ConvTranspose1d(4, 3, 4, stride=3, dilation=2), nn.MaxPool1d(2), nn.AvgPool1d(2),
        nn.AdaptiveAvgPool1d(3), nn.GRU(16, 4), nn.LSTM(16, 4), nn.RMSNorm(16), nn.BatchNorm1d(4),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
    ),
    VOLUMES: (
        nn.Conv3d(4, 4, 3, padding=1), nn.ConvTranspose3d(4, 3, 3, stride=2), nn.MaxPool3d(2), nn.AvgPool3d(2, padding=1),
        nn.AdaptiveAvgPool3d((2, 3, 4)), nn.BatchNorm3d(4),
    ),
}  # fmt: skip

FUNCTIONS: dict[str, Callable[[Tensor], object]] = {
    "out arguments": lambda x: with_places(x.clone()),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention by hand": lambda x: (x @ x.transpose(-1, -2) / 6**0.5).softmax(-1) @ x,
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "logsumexp of two": lambda x: torch.logsumexp(x, (1, 2)),
    "pooled transposed rows": lambda x: F.adaptive_avg_pool1d(x.flatten(2).transpose(1, 2), 1) * x.mean(),
    "cumsum": lambda x: torch.cumsum(x, 1),
    "cumsum reversed": lambda x: torch.cumsum(x.flip(1), 1).flip(1),
    "cumsum exclusive": lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1).cumsum(1),
    "cumprod": lambda x: torch.cumprod(x, 1),
    "argmax": lambda x: (x.argmax(1), x.argmax(), x.argmin(2, keepdim=True)),
    "max and min": lambda x: (torch.max(x, 1), x.max(), x.min(1)[0] - x.amax((2, 3), keepdim=True)[:, 0]),
    "cosine": lambda x: F.cosine_similarity(x, x * 2 + 1),
    "cat": lambda x: torch.cat([x, x * 2, x.exp()], 1),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "chunks": lambda x: torch.chunk(x, 2, 1),
    "unbind": lambda x: x.unbind(1)[2],
    "triu": torch.triu,
    "masked fill": lambda x: torch.tril(torch.ones(8, 6)).masked_fill(torch.ones(8, 6) == 0, -1e9) + x,
    "einsum": lambda x: torch.einsum("bcij,bckj->bcik", x, x),
    "constant": lambda x: x * torch.tensor([1.0, 2, 3, 4, 5, 6]),
    "assigned slices": overwrite,
    "interleaved": interleave,
    "rotary": rotary,
    "norms": lambda x: tuple(torch.linalg.vector_norm(x, p, dim=1) for p in (1, 2, 3, float("inf"))),
    "normalised": lambda x: (x / torch.norm(x), F.normalize(x, dim=1)),
    "losses": lambda x: (
        F.smooth_l1_loss(x, x * 2),
        F.huber_loss(x, x * 2),
        F.mse_loss(x, x + 1),
        torch.clamp(1 - x, min=0).mean(),
    ),
    "kl": lambda x: F.kl_div(x.log_softmax(1), x.exp().softmax(1), reduction="batchmean"),
    "topk": lambda x: x.topk(2),
    "sorted": lambda x: (x.sort(), x.sort(dim=1, descending=True)),
    "variance": lambda x: (x.var(1), x.std(1), torch.var_mean(x, (2, 3), unbiased=False)),
    "pads": lambda x: (F.pad(x, (1, 1, 2, 0)), F.pad(x, (-1, 2), value=3.0)),
    "moved": lambda x: (torch.roll(x, 1, 1), x.repeat(1, 2, 1, 3), x.flip(1, 3), x.unfold(2, 3, 2)),
    "distances": lambda x: torch.cdist(x, x + 1),
    "linspace": lambda x: torch.linspace(0, 1, 6) + x,
    "products": lambda x: (
        x.reshape(8, 48).T @ x.reshape(8, 48),
        x @ x[0, 0].T,
        x[0, 0] @ x[0, 0, 0],
        torch.dot(x[0, 0, 0], x[0, 0, 1]),
    ),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(2, 6, 6, dtype=x.dtype)),
    "diagonals": lambda x: (torch.diagonal(x, 1, 2, 3), torch.diag(x[0, 0, 0]) @ x.transpose(2, 3), torch.eye(6) + x[:, :, :6]),
    "residual": lambda x: F.relu(x + F.conv2d(x, torch.ones(4, 4, 1, 1, dtype=x.dtype) * 0.25)),
    "powers": lambda x: x.pow(3) + x.abs() ** 0.5 + 2**x + x.abs() ** x,
    "rounding": lambda x: (x.round(), x.floor(), x.trunc(), x % 2, x.fmod(2), torch.div(x, 0.3, rounding_mode="floor")),
    "integers": lambda x: (x.long() // 2, x.long() % 3, (x * 9).int(), (x * 9).long().bitwise_and(3), -(x * 5).long()),
    "whole remainders": lambda x: ((x * 9).long().fmod(4), (x * 9).long().fmod(-4), (x * 9).int().fmod(4)),
    "truths": lambda x: (x > 0, (x > 0) & (x < 1), (x > 0).sum(), (x > 0).float().sum(1), (x > 2).any(1), (x > -9).all()),
    "where": lambda x: torch.where(x > 0, x, 0.1),
    "lookups": lambda x: (
        x[:, [0, 2, 1]],
        x[:, torch.arange(3), :, torch.arange(3)],
        torch.gather(x, 3, torch.zeros(2, 4, 8, 2).long()),
    ),
    "scattered": lambda x: torch.zeros(2, 4, 8, 6, dtype=x.dtype).scatter_(3, torch.ones(2, 4, 8, 1).long(), 5.0) + x,
    "memory that is filled": fill_memory,
    "scatter add": lambda x: x.scatter_add(1, torch.ones(2, 4, 8, 6).long(), x),
    "views": lambda x: (
        x.permute(3, 0, 2, 1).reshape(6, -1),
        x[:, :1].squeeze(1).unsqueeze(-1),
        x.movedim(1, 3).reshape(4, -1),
    ),
    "itself": lambda x: (x, x, x + 1),
    "clamps": lambda x: x.clamp(-0.5, 0.5) + x.clamp(max=0.1),
    "scalars": lambda x: (1 - x) * 3 + x / 7 - 0.25,
    "products along": lambda x: x.prod(1),
    "functions": lambda x: ((x.exp() + x.sigmoid()).tanh() * x.erf(), x.sin() + x.cos().log1p(), x.atan() + x.sinh()),
    "three": lambda x: torch.addcmul(x, x, x, value=0.3) + torch.addcdiv(x, x, x + 9) + torch.lerp(x, x * 2, 0.2),
    "no input needed": lambda x: torch.ones(3),
    "broadcast": lambda x: x.mean(1, keepdim=True).exp() * x,
}  # fmt: skip


def several() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Models with their own inputs: several, integer, half, or large enough for reductions in two steps."""
    half = torch.randn(2, 4, 8, 16, dtype=torch.float16)
    rows = torch.randn(*ROWS)
    return {
        "embedding": (nn.Embedding(10, 5), (torch.randint(0, 10, (3, 4)),)),
        "cross entropy": (nn.CrossEntropyLoss(), (torch.randn(6, 5), torch.randint(0, 5, (6,)))),
        "triplet": (nn.TripletMarginLoss(), tuple(torch.randn(6, 5) for _ in range(3))),
        "multihead": (nn.MultiheadAttention(16, 2, batch_first=True), (rows, rows, rows)),
        "half attention": (Lambda(F.scaled_dot_product_attention), (half, half * 2, half + 1)),
        "half product": (Lambda(torch.matmul), (half, half.transpose(-1, -2).contiguous())),
        "half layernorm": (nn.LayerNorm(16).half(), (half,)),
        "bfloat16 softmax": (nn.Softmax(-1), (half.bfloat16(),)),
        "double": (nn.Sequential(nn.Linear(6, 5), nn.GELU()).double(), (torch.randn(4, 6).double(),)),
        "double scans": (Lambda(lambda x: (x.cumsum(1), (x / 2).cumprod(0))), (torch.randn(4, 6).double(),)),
        "long sum": (Lambda(torch.sum), (torch.randn(70001),)),
        "long mean": (Lambda(lambda x: x.mean((1, 2))), (torch.randn(3, 100, 131) + 2,)),
        "long column": (Lambda(lambda x: x.mean(0)), (torch.randn(9001, 3),)),
        "long max": (Lambda(lambda x: (x.amax(), (x > 3).any(), x.argmax(0))), (torch.randn(9001, 3),)),
        "long rows": (nn.Softmax(1), (torch.randn(3, 9001),)),
        "long layernorm": (nn.LayerNorm((8, 32, 41)), (torch.randn(3, 8, 32, 41) + 3,)),
        "long variance": (Lambda(lambda x: x.var(1)), (torch.randn(5, 10000),)),
        "long norm": (Lambda(lambda x: x / torch.norm(x)), (torch.randn(120, 71),)),
        "long count": (Lambda(torch.sum), (torch.randint(0, 9, (9001, 3)),)),
        "long product": (Lambda(torch.matmul), (torch.rand(4, 3000), torch.rand(3000, 5))),
    }


TINY: dict[str, Mapping[str, int]] = {
    "softmax": {"batch_size": 5, "dim": 77},
    "layernorm": {"batch_size": 3, "features": 4, "dim1": 5, "dim2": 6},
    "matmul_fp32": {"m": 9, "n": 11, "k": 13},
    "matmul_fp16": {"m": 9, "n": 11, "k": 13},
    "conv2d": {"batch_size": 1, "out_channels": 5, "height": 31, "width": 29},
    "conv2d_relu_maxpool": {"batch_size": 1, "out_channels": 5, "height": 47, "width": 45},
    "attention_fp16": {"batch_size": 1, "heads": 2, "sequence": 12, "head_dim": 8},
    "rmsnorm_bf16": {"tokens": 5, "hidden": 72},
    "gqa_decode_bf16": {"batch_size": 2, "length": 37, "kv_heads": 2, "group": 3, "head_dim": 16},
    "gemm_fp8": {"m": 9, "n": 32, "k": 48, "scale_block": 16},
}
FOREIGN = Path(__file__).parents[1] / "problem" / "kernelbench"
UNTRACEABLE = {"data_dependent", "dropout", "half_weights"}


def of_module(model: nn.Module, inputs: tuple[Tensor, ...]) -> Case:
    """A case from a model and its inputs."""
    with torch.no_grad():
        eager = tuple(tensors(as_tuple(copy.deepcopy(model)(*(t.clone() for t in inputs)))))
        double = copy.deepcopy(model).double()
        wide = (t.double() if t.is_floating_point() else t.clone() for t in inputs)
        exact = tuple(tensors(as_tuple(double(*wide))))
    held = [(n, Role.PARAMETER, p.detach()) for n, p in model.named_parameters()]
    held += [(n, Role.BUFFER, b) for n, b in model.named_buffers()]
    rows = [(f"x{i}", Role.INPUT, t) for i, t in enumerate(inputs)] + held
    outputs = [("out" if len(eager) == 1 else f"out{i}", Role.OUTPUT, t) for i, t in enumerate(eager)]
    operands = tuple(
        Operand(names.identifier(n), role, tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for n, role, t in (*rows, *outputs)
    )
    graph = trace(model, inputs, [operand.name for operand in operands[: len(rows)]])
    assert isinstance(graph, Graph), graph
    arguments = tuple(t.clone().contiguous() for _, _, t in rows)
    return Case(Signature(operands, {}), graph, arguments, eager, exact)


def as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def of_reference(spec: str, settings: Mapping[str, int]) -> Case:
    """A case from a problem file."""
    problem = catalog.find(spec)
    workload = Workload("tiny", settings) if settings else catalog.workload_for(problem, "small")
    reference = Reference(problem, workload)
    model, inputs = reference.model(1), reference.inputs(2)
    graph = trace_reference(reference)
    assert isinstance(graph, Graph), graph
    arguments = tuple(t.clone() for t in reference.arguments(model, inputs))
    eager = reference.call(model, inputs)
    return Case(reference.signature(), graph, arguments, eager, reference.exact(model, inputs).outputs)


def makers() -> Iterator[tuple[str, Callable[[], Case]]]:
    for shape, layers in LAYERS.items():
        for place, layer in enumerate(layers):
            yield f"{type(layer).__name__}-{len(shape)}d-{place}", lambda m=layer, s=shape: of_module(m, (torch.randn(*s),))  # type: ignore[misc]
    for name, function in FUNCTIONS.items():
        yield name, lambda f=function: of_module(Lambda(f), (torch.randn(*IMAGES),))  # type: ignore[misc]
    for name, (model, inputs) in several().items():
        yield name, lambda m=model, i=inputs: of_module(m, i)  # type: ignore[misc]
    for name, settings in TINY.items():
        yield f"shipped {name}", lambda n=name, s=settings: of_reference(n, s)  # type: ignore[misc]
    for path in sorted(FOREIGN.glob("*.py")):
        if path.stem not in UNTRACEABLE:
            yield f"foreign {path.stem}", lambda p=path: of_reference(str(p), {})  # type: ignore[misc]


with torch.random.fork_rng():
    torch.manual_seed(0)
    MAKERS = dict(makers())

SAMPLE = (
    "shipped",
    "half",
    "bfloat16",
    "foreign transformer",
    "GRU",
    "topk",
    "rounding",
    "integers",
    "functions",
    "constant",
    "out arguments",
)
"""All operand types and helper functions are among them."""
USUAL = {name for place, name in enumerate(MAKERS) if place % 24 == 0}
"""Compiled by default; CI compiles all."""

EMULATED = """\
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
struct Dim { unsigned x; };
static const Dim blockIdx{0}, threadIdx{0}, blockDim{1}, gridDim{1};
#define __global__ static
#define __device__
struct Any { void* p; template <class T> operator T*() const { return static_cast<T*>(p); } };
"""


def emulated(text: str, signature: Signature) -> str:
    """A CUDA plan as C++ that launches its kernels by its @launch lines, with ``plan(pointers, workspace)``."""
    plan, table = parse_plan(text), header.plan_names(signature, 0)
    order = {operand.name: place for place, operand in enumerate(signature.operands)}

    def spelled(reference: PlanReference) -> str:
        if isinstance(reference, NameRef):
            return f"Any{{p[{order[reference.token.text]}]}}"
        offset = evaluate(reference.offset, table) if reference.offset else 0
        return f"Any{{static_cast<char*>(w) + {offset}}}"

    calls = [f"    {launch.kernel.text}({', '.join(map(spelled, launch.arguments))});" for launch in plan.launches]
    size = evaluate(plan.workspace.size, table) if plan.workspace else 0
    body = text.replace('extern "C" __global__', "__global__")
    run = ['extern "C" void plan(void* const* p, void* w)', "{", *calls, "}"]
    return "\n".join([body, *run, f'extern "C" size_t plan_bytes(void) {{ return {size}; }}'])


@dataclass(frozen=True)
class Library:
    """The compiled cases by name, and how to call them."""

    cases: Mapping[str, tuple[int, Case]]
    handle: ctypes.CDLL

    def call(self, name: str, how: str) -> tuple[Tensor, ...]:
        """The outputs of a kernel; the memory around them is poisoned and checked."""
        number, case = self.cases[name]
        given = [t.clone() for t in case.arguments]
        outputs = tuple(poison(t) for t in case.eager)
        function = getattr(self.handle, f"{'launch' if how == 'cpp' else 'plan'}_{number}")
        sized = getattr(self.handle, f"{'workspace' if how == 'cpp' else 'plan'}_bytes_{number}", None)
        size = 0
        if sized is not None:
            sized.restype = ctypes.c_size_t
            size = sized()
        scratch = torch.full((size + 512,), 0xFF, dtype=torch.uint8)
        start = -scratch.data_ptr() % 256
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*given, *outputs)]
        workspace = ctypes.c_void_p(scratch.data_ptr() + start)
        if how == "cpp":
            function(*pointers, workspace)
        else:
            function((ctypes.c_void_p * len(pointers))(*pointers), workspace)
        assert bool((scratch[start + size :] == 0xFF).all()), "wrote beyond the workspace"
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(given, case.arguments, strict=True)), "changed its inputs"
        return outputs


def poison(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, float("nan") if tensor.is_floating_point() else 77, memory_format=torch.contiguous_format)


def bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Library:
    """All collected cases in one shared object: one compiler run."""
    folder = tmp_path_factory.mktemp("naive")
    cases: dict[str, tuple[int, Case]] = {}
    main = [EMULATED]
    items = request.session.items
    collected = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    for_nvcc = SAMPLE if any(item.name.startswith(test_plans_compile_for_hopper.__name__) for item in items) else ()
    for number, (name, make) in enumerate(MAKERS.items()):
        if name not in collected and not name.startswith(for_nvcc):
            continue
        with torch.random.fork_rng():
            torch.manual_seed(number)
            case = make()
        graph = msgspec.msgpack.decode(msgspec.msgpack.encode(case.graph), type=Graph)
        cpp = naive(graph, case.signature, Dialect.CPP, Contract.HOST)
        plan = naive(graph, case.signature, Dialect.CUDA, Contract.PLAN)
        assert isinstance(cpp, str), (name, cpp)
        assert isinstance(plan, str), (name, plan)
        cases[name] = number, case
        text = header.render(case.signature, Dialect.CPP, "tiny")
        (folder / f"m{number}").mkdir()
        (folder / f"m{number}" / "problem.h").write_text(text)
        (folder / f"m{number}" / "kernel.cpp").write_text(cpp)
        (folder / f"m{number}" / "plan.cpp").write_text(emulated(plan, case.signature))
        for file, words in (("kernel", ("launch", "workspace_bytes")), ("plan", ("plan", "plan_bytes"))):
            main += [f"#define {word} {word}_{number}" for word in words]
            main += [f"namespace {file}{number} {{", f'#include "m{number}/{file}.cpp"', "}"]
            main += [f"#undef {word}" for word in (*words, *re.findall(r"#define (\w+)", text))]
    (folder / "all.cpp").write_text("\n".join(main) + "\n")
    command = ["g++", "-std=c++20", "-O0", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared", "all.cpp", "-o", "all.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return Library(cases, ctypes.CDLL(str(folder / "all.so")))


def error(found: Tensor, exact: Tensor) -> float:
    """Frobenius norm of the error over that of the centred output; relative error for a single number."""
    spread = exact - exact.mean() if exact.numel() > 1 else exact
    return float((found.double() - exact).norm() / spread.norm().clamp(min=1e-30))


FLOORS = {torch.float64: 1e-15, torch.float32: 3e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("how", ["cpp", "plan"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in USUAL else pytest.mark.slow) for name in MAKERS])
def test_naive_kernel_is_as_accurate_as_eager(library: Library, name: str, how: str) -> None:
    case = library.cases[name][1]
    for found, eager, exact in zip(library.call(name, how), case.eager, case.exact, strict=True):
        assert found.shape == eager.shape
        if not eager.is_floating_point():
            assert torch.equal(found, eager)
        elif exact.numel() and not torch.equal(found, eager):
            assert torch.equal(found.isfinite(), eager.isfinite())
            assert error(found, exact.double()) <= max(4 * error(eager, exact.double()), FLOORS[eager.dtype])


@pytest.mark.slow
def test_plans_compile_for_hopper(library: Library, tmp_path: Path) -> None:
    """nvcc takes a sample of the plans, all operand types and helper functions among them."""
    nvcc = nvcc_path()
    main = []
    for name, (number, case) in library.cases.items():
        if not name.startswith(SAMPLE):
            continue
        text = header.render(case.signature, Dialect.CUDA, "tiny")
        plan = naive(case.graph, case.signature, Dialect.CUDA, Contract.PLAN)
        assert isinstance(plan, str)
        (tmp_path / f"m{number}").mkdir()
        (tmp_path / f"m{number}" / "problem.h").write_text(text)
        (tmp_path / f"m{number}" / "plan.cuh").write_text(plan.replace('extern "C" ', ""))
        main += [f"namespace m{number} {{", f'#include "m{number}/plan.cuh"', "}"]
        main += [f"#undef {word}" for word in re.findall(r"#define (\w+)", text)]
    first = ["cstddef", "cstdint", "math.h", "stdlib.h", "cuda_fp16.h", "cuda_bf16.h"]
    (tmp_path / "all.cu").write_text("\n".join([f"#include <{file}>" for file in first] + main) + "\n")
    command = [nvcc, "-cubin", "-O1", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "all.cu", "-o", "all.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def nvcc_path() -> str:
    import asyncio

    try:
        return str(asyncio.run(find_nvcc()).path)
    except ToolchainError as missing:
        pytest.skip(f"no nvcc: {missing}")
