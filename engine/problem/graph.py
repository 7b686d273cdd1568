"""Traces a model's forward pass into the ATen graph of ``graph_ir``. Imports torch.

Functionalises and decomposes the forward: no mutation, no composite operators, parameters and buffers as operands. Knows no
operator's meaning.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from engine.domain.model import Role
from engine.problem.arguments.values import map_arguments, output_tensors, tensors
from engine.problem.counting.recurrences import TracingLimits, TracingStopped
from engine.problem.graph_ir import Argument, ConstantTable, Graph, Node, Ref, Scalar, TensorType, Unsupported
from engine.problem.loading import LoadedReference, plain_tensors
from engine.problem.reference import Reference
from engine.problem.reference_step import StepTooLong, one_step
from engine.problem.torch_modes.out_arguments import OutArguments
from engine.problem.torch_modes.randomness import seeded

MAX_TABLE_ELEMENTS = 4096
"""Largest constant tensor that may be written into a kernel's code."""

DECOMPOSED = (
    "native_layer_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_fused_rms_norm",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "grid_sampler_2d",
    "nll_loss_forward",
    "nll_loss2d_forward",
    "_trilinear",
    "renorm",
)
"""Operators to decompose beyond core ATen, where the installed torch can."""

KEPT_WHOLE = ("_softmax", "_log_softmax", "_safe_softmax", "native_group_norm")
"""Operators that are not decomposed: their lowerings are simpler."""

MAX_PASSES = 3
"""Decomposition can reintroduce mutations; the graph is traced again until there are none."""


def trace_reference(reference: Reference) -> Graph | Unsupported:
    """The graph of one workload of a problem, its operands named as in the signature.

    Model and inputs are fake tensors where possible, so that a large workload takes no memory; always on the CPU, since a
    GPU's own operators add no information. Raises ProblemError when the reference itself fails.
    """
    signature = reference.signature()
    if reference.device.type != "cpu":
        reference = Reference(reference.problem, reference.workload)
    labels = [o.name for o in signature.with_roles(Role.INPUT, Role.PARAMETER, Role.BUFFER)]
    try:
        traced = _trace_fake(reference, labels)
        return traced if isinstance(traced, Graph) else trace(reference.model(0), reference.inputs(0), labels)
    except TracingStopped as stop:
        return Unsupported(str(stop))


def _trace_fake(reference: Reference, labels: Sequence[str]) -> Graph | Unsupported:
    try:
        loaded = LoadedReference(reference.problem, reference.workload)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), seeded(0, reference.device):
            inputs, model = loaded.make_inputs(reference.device), loaded.make_model(reference.device)
        return trace(model, inputs, labels)
    except TracingStopped:
        raise
    except Exception as error:  # a reference that reads contents while it is made; the caller uses real tensors
        return Unsupported(f"contents of tensors while the model is constructed ({type(error).__name__})")


def trace(model: nn.Module, arguments: Sequence[object], labels: Sequence[str]) -> Graph | Unsupported:
    """The forward pass of ``model`` as it is now (training or evaluation mode) on ``arguments``.

    Nothing is computed: only shapes and dtypes of the arguments matter. ``labels`` names the operands: each tensor among
    ``arguments`` in order, then each parameter, buffer and tensor kept as a plain attribute. Raises ValueError where they do
    not fit, TracingStopped for a long recurrence and after a time limit.
    """
    state = [tensor for _, _, tensor in _tensor_slots(model)]
    own = list(tensors(tuple(arguments)))
    fake = FakeTensorMode(allow_non_fake_inputs=True).from_tensor
    operands = [t if isinstance(t, FakeTensor) else fake(t) for t in (x.detach() for x in (*own, *state))]
    if len(labels) != len(operands):
        raise ValueError(f"the model has {len(operands)} operands, but {len(labels)} names were given")

    def forward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fresh = iter(given)
        swapped = map_arguments(lambda _: next(fresh), tuple(arguments))
        with _substituted(model, dict(zip(map(id, state), fresh, strict=True))):
            return tuple(output_tensors(model(*swapped), torch.device("cpu")))

    try:
        with one_step():
            module = _functionalized(forward, operands, TracingLimits())
    except TracingStopped:
        raise
    except (Exception, StepTooLong) as error:  # whatever the reference's Python raises under a tracer becomes a value
        reason = (str(error).strip().splitlines() or [""])[0].strip()[:160]
        return Unsupported(f"a forward pass that cannot be traced ({type(error).__name__}: {reason})")
    return _as_graph(module, tuple(labels), operands)


TensorSlot = tuple[dict[str, Any], str, torch.Tensor]
"""A place where a module keeps a tensor: the dictionary, the key, the tensor."""


def _tensor_slots(model: nn.Module) -> list[TensorSlot]:
    """Every parameter, buffer and plain tensor of a model once, in the order of a signature's operands."""
    slots: list[TensorSlot] = []
    for name, _ in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        held: dict[str, Any] = model.get_submodule(owner)._parameters
        slots.append((held, leaf, held[leaf]))
    for name, _ in model.named_buffers():
        owner, _, leaf = name.rpartition(".")
        kept: dict[str, Any] = model.get_submodule(owner)._buffers
        slots.append((kept, leaf, kept[leaf]))
    for module in model.modules():
        slots += [(vars(module), name, tensor) for name, tensor in plain_tensors(module)]
    return slots


@contextmanager
def _substituted(model: nn.Module, fresh: dict[int, torch.Tensor]) -> Iterator[None]:
    """Replace the model's tensors by id, everywhere they occur, and restore them afterwards."""
    changed: list[TensorSlot] = []
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for held in tables:
            changed += [(held, n, t) for n, t in held.items() if isinstance(t, torch.Tensor) and id(t) in fresh]
    try:
        for held, name, tensor in changed:
            held[name] = fresh[id(tensor)]
        yield
    finally:
        for held, name, tensor in changed:
            held[name] = tensor


def _functionalized(
    forward: Callable[..., tuple[torch.Tensor, ...]], tensors: Sequence[torch.Tensor], limits: TracingLimits
) -> fx.GraphModule:
    table = _decompositions()
    module: Callable[..., object] = forward
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(limits)
        stack.enter_context(OutArguments())
        for _ in range(MAX_PASSES):
            traced = make_fx(functionalize(module), decomposition_table=table, tracing_mode="fake")(*tensors)
            module = traced
            limits.check()
            if not any(_mutates(node) for node in traced.graph.nodes):
                break
    return traced


def _decompositions() -> dict[OpOverload, Callable[..., Any]]:
    packets = [getattr(torch.ops.aten, name) for name in DECOMPOSED if hasattr(torch.ops.aten, name)]
    core: Mapping[Any, Callable[..., Any]] = core_aten_decompositions()
    table = {operator: core[operator] for operator in core} | get_decompositions(packets)
    return {
        operator: rule
        for operator, rule in table.items()
        if isinstance(operator, OpOverload) and _operator_name(operator) not in KEPT_WHOLE
    }


def _operator_name(operator: OpOverload) -> str:
    """The name of an operator without namespace and overload."""
    return str(operator).removeprefix("aten.").partition(".")[0]


def _mutates(node: fx.Node) -> bool:
    """Whether a node changes a tensor in place, other than writing a buffer back at the end."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return False
    return not (node.target is torch.ops.aten.copy_.default and _node(node.args[0]).op == "placeholder")


def _node(value: object) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise TypeError(f"not a node of a graph: {value!r}")
    return value


def _as_graph(module: fx.GraphModule, names: tuple[str, ...], tensors: Sequence[torch.Tensor]) -> Graph | Unsupported:
    """The nodes that the outputs depend on, as plain data."""
    nodes = list(module.graph.nodes)
    output = next(node for node in nodes if node.op == "output")
    results = [_node(value) for value in pytree.tree_leaves(output.args[0]) if value is not None]
    needed: set[fx.Node] = set(results)
    for node in reversed(nodes):
        if node in needed and node.op != "placeholder":
            needed.update(node.all_input_nodes)
    called = {node: names[i] for i, node in enumerate(n for n in nodes if n.op == "placeholder")}
    called |= {node: f"{node.name}_" if node.name in names else node.name for node in nodes if node.op != "placeholder"}
    tables: list[ConstantTable] = []
    written: list[Node] = []
    for node in nodes:
        if node not in needed or node.op in ("placeholder", "output"):
            continue
        match node.op:
            case "get_attr":
                held = _attribute(module, str(node.target))
                if not isinstance(held, torch.Tensor):
                    return Unsupported(f"an object that is neither a tensor nor a number ({type(held).__name__})")
                constant = _constant(called[node], held)
                if isinstance(constant, Unsupported):
                    return constant
                tables.append(constant)
            case "call_function":
                written.append(_as_node(node, called))
            case _:
                return Unsupported(f"a forward pass with a call that is no ATen operator ({node.target})")
    kinds = tuple((name, _tensor_type(tensor)) for name, tensor in zip(names, tensors, strict=True))
    return Graph(kinds, tuple(tables), tuple(written), tuple(called[node] for node in results))


def _attribute(module: fx.GraphModule, path: str) -> object:
    found: object = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _constant(name: str, tensor: torch.Tensor) -> ConstantTable | Unsupported:
    if isinstance(tensor, FakeTensor):
        return Unsupported(
            "a module that is made in forward", "make it in the model's constructor, or write the kernel by hand with --empty"
        )
    if tensor.numel() > MAX_TABLE_ELEMENTS:
        return Unsupported(
            f"a constant tensor of {tensor.numel()} elements that is neither a parameter nor a buffer",
            "register it as a buffer of the model, or write the kernel by hand with --empty",
        )
    if tensor.is_complex():
        return Unsupported("complex numbers")
    return ConstantTable(name, _tensor_type(tensor), tuple(tensor.detach().flatten().tolist()))


def _tensor_type(value: torch.Tensor) -> TensorType:
    return TensorType(tuple(int(extent) for extent in value.shape), str(value.dtype).removeprefix("torch."))


def _as_node(node: fx.Node, called: dict[fx.Node, str]) -> Node:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    results = tuple(_tensor_type(v) if isinstance(v, torch.Tensor) else None for v in values)
    if node.target is operator.getitem:
        source, index = node.args
        return Node(called[node], "getitem", {"x": _argument(source, called), "index": _argument(index, called)}, results)
    if not isinstance(node.target, OpOverload):
        return Node(called[node], str(node.target), {}, results)
    target = node.target
    if target is torch.ops.aten.as_strided.default and _keeps_layout(node):
        return Node(called[node], "alias.default", {"x": _argument(node.args[0], called)}, results)
    arguments: dict[str, Argument] = {}
    for place, declared in enumerate(target._schema.arguments):
        named = node.kwargs.get(declared.name, declared.default_value)
        given = node.args[place] if place < len(node.args) else named
        arguments["x" if declared.name in ("self", "input") else declared.name] = _argument(given, called)
    namespace, _, name = target._schema.name.partition("::")
    overload = target._schema.overload_name or "default"
    return Node(called[node], f"{name if namespace == 'aten' else target._schema.name}.{overload}", arguments, results)


def _keeps_layout(node: fx.Node) -> bool:
    """Whether an ``as_strided`` restates its argument's own shape, strides and offset; the stride of an extent of 1 is free."""
    given = node.all_input_nodes[0].meta.get("val")
    size, stride, *offset = (*node.args[1:], *node.kwargs.values())
    if not isinstance(given, torch.Tensor) or not isinstance(size, list | tuple) or not isinstance(stride, list | tuple):
        return False
    same = all(n == 1 or mine == own for n, mine, own in zip(size, stride, given.stride(), strict=False))
    return tuple(size) == tuple(given.shape) and same and (not offset or offset[0] in (None, given.storage_offset()))


def _argument(value: object, called: dict[fx.Node, str]) -> Argument:
    return tuple(_item(v, called) for v in value) if isinstance(value, list | tuple) else _item(value, called)


def _item(value: object, called: dict[fx.Node, str]) -> Scalar | Ref:
    match value:
        case fx.Node():
            return Ref(called[value])
        case torch.dtype():
            return str(value).removeprefix("torch.")
        case bool() | int() | float() | str() | None:
            return value
        case _:
            return None
