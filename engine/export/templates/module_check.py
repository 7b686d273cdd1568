"""Template: an exported module's ``--test`` against the reference in float64 and ``--bench`` against eager.

``engine.export.template`` copies this file into the module after the kernel. Errors are computed as in Espalier's judge.
"""

import argparse
import contextlib
import copy
import math
import os
import sys
import time
import types
import unittest.mock
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from engine.export.templates.kernel_module import DEVICE, OPERATOR, OPERATOR_NAME, POISON, ModelNew
from engine.export.templates.nested_arguments import _map, _parts, _tensors

REFERENCES: list[tuple[str, str | None]] = [("", None)]

POLICY: tuple[str, float | None] = ("", None)

LIMITS: tuple[float, float] | None = None


def _reference(shape: int) -> dict[str, Any]:
    """The reference's names for one of the shapes: this file's, unless ``REFERENCES`` has its code."""
    code = REFERENCES[shape][1]
    if code is None:
        return globals()
    module = types.ModuleType(f"espalier_reference_{shape}")
    sys.modules[module.__name__] = module
    exec(compile(code, "reference", "exec"), module.__dict__)
    return module.__dict__


def _flat(value: Any, like: Any = None) -> list[torch.Tensor]:
    """Every tensor and number of a result, in order; of a dictionary by the keys of that in the same place of ``like``."""
    if isinstance(value, Mapping) and isinstance(like, Mapping):
        keys = [*like, *(key for key in value if key not in like)]
        return [tensor for key in keys for tensor in _flat(value.get(key), like.get(key))]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        parts = like if isinstance(like, (list, tuple)) and len(like) == len(value) else [None] * len(value)
        return [tensor for inner, part in zip(value, parts, strict=True) for tensor in _flat(inner, part)]
    return [] if value is None else [torch.as_tensor(value, device=DEVICE)]


def _map_attributes(function: Callable[[torch.Tensor], torch.Tensor], model: Any) -> Any:
    """Apply ``function`` to the model's plain tensor attributes, which ``Module.to`` ignores."""
    for part in model.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                setattr(part, name, function(value))
    return model


def _model(kind: Any, given: Any) -> Any:
    """A model from the result of ``get_init_inputs``, constructed as in KernelBench."""
    items = [given] if isinstance(given, Mapping) else list(given or ())
    if items and isinstance(items[-1], Mapping):
        both = len(items) == 2 and isinstance(items[0], (list, tuple))
        try:
            return kind(*(items[0] if both else items[:-1]), **items[-1])
        except TypeError:
            pass
    return kind(*items)


def _case(shape: int, seed: int, own: bool = False) -> tuple[Any, Any, list[Any]]:
    """The reference's model for one of the shapes, the kernel's model with the same weights, and inputs.

    ``own``: the kernel's model keeps the weights that its constructor makes, from the same seed.
    """
    found = _reference(shape)
    models = []
    for kind in (found["Model"], ModelNew):
        torch.manual_seed(seed)
        model = _model(kind, found["get_init_inputs"]()).to(DEVICE)
        models.append(_map_attributes(lambda tensor: tensor.to(DEVICE), model))
    theirs, mine = models
    if not own and theirs.state_dict().keys() == mine.state_dict().keys():
        mine.load_state_dict(theirs.state_dict())
    torch.manual_seed(seed + 1)
    inputs = found["get_inputs"]()
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    return theirs, mine, _map(lambda tensor: tensor.to(DEVICE), inputs)


def _chosen(predicate: Any, then: Any, otherwise: Any, operands: Any) -> Any:
    return (then if predicate else otherwise)(*operands)


def _repeated(goes_on: Any, body: Any, carried: Any, further: Any) -> Any:
    while goes_on(*carried, *further):
        carried = body(*carried, *further)
    return tuple(carried)


_EAGER = {"cond": _chosen, "while_loop": _repeated}


_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


class _Float64Mode(TorchDispatchMode):
    """Makes operators with a narrower ``dtype`` argument return float64 instead: with one of ``narrow``.

    Operators of higher order, as ``flex_attention``, run as their eager definition, whose operators the mode sees.
    """

    supports_higher_order_operators = True
    _composing = False

    def __init__(self, narrow: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self._narrow = narrow

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):
            eager = _EAGER.get(func.name()) or func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
            return self._composed(eager, args, given) if eager else NotImplemented
        if self._composing and (parts := self._composed(func.decompose, args, given)) is not NotImplemented:
            return parts
        if given.get("dtype") in self._narrow:
            given["dtype"] = torch.float64
        return func(*args, **given)

    def _composed(self, of: Any, args: Any, given: Any) -> Any:
        before, self._composing = self._composing, True
        try:
            with self:
                return of(*args, **given)
        finally:
            self._composing = before


def _uncompiled() -> Any:
    """Within, torch compiles nothing: it would compile operators of higher order, and cannot trace them under a mode."""
    return unittest.mock.patch.dict(os.environ, {"TORCHDYNAMO_DISABLE": "1"})


def _exact(model: Any, inputs: list[Any], dtype: torch.dtype, narrow: tuple[torch.dtype, ...] = _NARROW) -> list[torch.Tensor]:
    """The reference's outputs with all arithmetic in ``dtype``. ``narrow``: casts to these give float64."""

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor.clone()

    wide, before = _map_attributes(widened, copy.deepcopy(model).to(dtype)), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _uncompiled(), _Float64Mode(narrow) if dtype == torch.float64 else contextlib.nullcontext():
            return _flat(wide(*_map(widened, inputs)))
    finally:
        torch.set_default_dtype(before)


def _expected(model: Any, inputs: list[Any], eager: list[torch.Tensor]) -> tuple[list[torch.Tensor], str]:
    """The expected outputs, and a note if they are not in float64. Those of eight-bit floats (``eager``) are not rounded."""
    narrow = (*_NARROW, *_EIGHT_BITS) if any(output.dtype in _EIGHT_BITS for output in eager) else _NARROW
    try:
        return _exact(model, inputs, torch.float64, narrow), ""
    except (RuntimeError, TypeError) as error:
        return _exact(
            model, inputs, torch.float32
        ), f" (compared with float32, because float64 failed: {str(error).splitlines()[0]})"


def _errors(output: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Two errors: Frobenius norm of the difference over that of the centred output, and the worst element's over its scale.

    Infinite for a wrong shape, a wrong integer, or a misplaced NaN or infinity.
    """
    if output.shape != exact.shape:
        return math.inf, math.inf
    if output.is_complex():
        output, exact = torch.view_as_real(output), torch.view_as_real(exact.to(torch.complex128))
    if not output.is_floating_point():
        return (0.0, 0.0) if torch.equal(output, exact.to(output.dtype)) else (math.inf, math.inf)
    wide, exact = output.double(), exact.double()
    finite = torch.isfinite(exact)
    masks = [torch.where(torch.isfinite(x), 0.0, x).nan_to_num(nan=0.5, posinf=2.0, neginf=-2.0) for x in (wide, exact)]
    if not torch.equal(*masks):
        return math.inf, math.inf
    if not bool(finite.any()):
        return 0.0, 0.0
    wide, exact = wide[finite], exact[finite]
    difference, spread = (wide - exact).abs(), float((exact - exact.mean()).norm())
    if POLICY[1] is not None:
        return 0.0, float((difference / (POLICY[1] + POLICY[1] * exact.abs())).max())
    scale = exact.abs() + spread / math.sqrt(exact.numel()) + 1e-300
    return float(difference.norm()) / max(spread, 1e-300), float((difference / scale).max())


def _worst(outputs: list[torch.Tensor], exact: list[torch.Tensor]) -> tuple[float, float]:
    if len(outputs) != len(exact):
        return math.inf, math.inf
    found = [_errors(*pair) for pair in zip(outputs, exact, strict=True)]
    return max(one for one, _ in found), max(other for _, other in found)


def _changed(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    """Whether two lists of tensors differ in any byte."""
    pairs = zip(before, after, strict=False)
    return any(not torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in pair)) for pair in pairs)


def _compare(shape: int, seed: int, own: bool = False) -> tuple[bool, str]:
    """One comparison: whether it passed, and its errors as text."""
    theirs, mine, inputs = _case(shape, seed, own)
    torch.manual_seed(seed + 2)
    given, before = _map(torch.clone, inputs), _tensors(_map(torch.clone, inputs))
    result = copy.deepcopy(theirs)(*given)
    exact, note = _expected(theirs, inputs, _flat(result))
    eager = _worst(_flat(result), exact)
    torch.manual_seed(seed + 2)
    errors = _worst(_flat(mine(*inputs), result), exact)
    limits = LIMITS or [10 * max(own, 4 * torch.finfo(torch.float32).eps) for own in eager]
    passed = errors[0] <= limits[0] and errors[1] <= limits[1]
    words = f"error {errors[0]:.2g} (limit {limits[0]:.2g}), worst element {errors[1]:.2g} (limit {limits[1]:.2g})"
    if _changed(before, _tensors(inputs)) and not _changed(before, _tensors(given)):
        return False, "the kernel changed its inputs"
    return passed, f"{words}; eager {eager[0]:.2g}, {eager[1]:.2g}{note}"


def _check_operator(operator: Any, tensors: tuple[torch.Tensor, ...]) -> None:
    """Run torch's own tests of an operator.

    That of the schema compares inputs before and after the call, which torch cannot do for eight-bit floats: ``_compare`` does.
    """
    tests = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if any(str(tensor.dtype).startswith("torch.float8") for tensor in tensors):
        tests.remove("test_schema")
    torch.library.opcheck(operator, tensors, test_utils=tests)


def _test(seeds: int) -> int:
    print(f"policy   {POLICY[0]}")
    failed, own = 0, False
    for shape, (name, _) in enumerate(REFERENCES):
        if len(REFERENCES) > 1:
            print(f"shape    {name}")
        for seed in range(seeds):
            passed, words = _compare(shape, seed, own)
            if not passed and shape == seed == 0 and (again := _compare(0, 0, True))[0]:
                (passed, words), own = again, True
                print("weights  its constructor's own: with the reference's it is wrong")
            failed += not passed
            print(f"seed {seed:<4}{'ok   ' if passed else 'WRONG'}{words}", flush=True)
    tried = f"{seeds} seeds" if len(REFERENCES) == 1 else f"{len(REFERENCES)} shapes, {seeds} seeds each"
    if failed:
        print(f"FAILED: {failed} of {tried}")
        return 1
    if OPERATOR is not None:
        _, mine, inputs = _case(0, 0)
        _check_operator(OPERATOR, tuple(tensor.detach() for tensor in mine.operands(*inputs)))
        print(f"opcheck  ok   {OPERATOR_NAME}")
    print(f"PASSED: {tried}, on {_device()}")
    return 0


def _device() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"


def _timed(call: Callable[[], Any], cold: torch.Tensor) -> float:
    """Microseconds of one call. On the CPU, a pause first lets the other contestant's spinning threads sleep."""
    if DEVICE == "cpu":
        cold.add_(1)
        time.sleep(0.01)
        begun = time.perf_counter()
        call()
        return (time.perf_counter() - begun) * 1e6
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(4):
        cold.add_(1)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _bench_shape(shape: int, seconds: float, cold: torch.Tensor) -> tuple[dict[str, list[float]], list[float]]:
    """Times of pairs of calls in alternating order, and the sorted ratios of the pairs."""
    theirs, mine, inputs = _case(shape, 0)
    given, fresh = _map(torch.clone, inputs), any(_parts(value) for value in inputs)
    copy.deepcopy(theirs)(*given)
    fresh = fresh or _changed(_tensors(inputs), _tensors(given))

    def call(model: Any) -> float:
        """``fresh``: a call changes its arguments, or may: each gets its own."""
        given = _map(torch.clone, inputs) if fresh else inputs
        return _timed(lambda: model(*given), cold)

    contestants = [("eager", theirs), ("ModelNew", mine)]
    times: dict[str, list[float]] = {name: [] for name, _ in contestants}
    for _, model in contestants * 3:
        call(model)
    end = time.perf_counter() + seconds
    while len(times["eager"]) < 12 or (time.perf_counter() < end and len(times["eager"]) < 5000):
        contestants.reverse()
        for name, model in contestants:
            times[name].append(call(model))
    return times, sorted(one / other for one, other in zip(times["eager"], times["ModelNew"], strict=True))


def _bench(seconds: float, hot: bool) -> int:
    """Print each shape's ratio, the median over pairs, with an interval from their ranks; then their geometric mean."""
    cold = torch.zeros(1 if hot else 1 << 27 if DEVICE == "cuda" else 1 << 26, dtype=torch.uint8, device=DEVICE)
    medians = []
    for shape, (title, _) in enumerate(REFERENCES):
        times, ratios = _bench_shape(shape, seconds / len(REFERENCES), cold)
        pairs = len(ratios)
        low = max(0, math.floor(pairs / 2 - 0.98 * math.sqrt(pairs)) - 1)
        if len(REFERENCES) > 1:
            print(f"shape    {title}")
        for name, found in times.items():
            print(f"{name:<9}{sorted(found)[pairs // 2]:.4g} us")
        interval = f"95% interval {ratios[low]:.3f} to {ratios[pairs - 1 - low]:.3f}, {pairs} pairs in one process"
        medians.append(ratios[pairs // 2])
        print(f"ratio    {medians[-1]:.3f} x eager ({interval}, {'hot' if hot else 'cold'} caches, on {_device()})")
    if len(medians) > 1:
        mean = math.exp(sum(map(math.log, medians)) / len(medians))
        print(f"mean     {mean:.3f} x eager (geometric mean of {len(medians)} shapes)")
    return 0


def _main() -> int:
    parser = argparse.ArgumentParser(description="Test and benchmark of one kernel.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--test", action="store_true", help="compare with the reference in float64; exit status 0 or 1")
    what.add_argument("--bench", action="store_true", help="time it interleaved with eager")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the test (5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of the benchmark (5)")
    parser.add_argument("--hot", action="store_true", help="keep the caches hot between calls of the benchmark")
    chosen = parser.parse_args()
    try:
        if DEVICE == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("this kernel needs a CUDA device, and PyTorch finds none")
        if chosen.test:
            POISON.append(True)
        with torch.no_grad():
            return _test(max(1, chosen.seeds)) if chosen.test else _bench(chosen.seconds, chosen.hot)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        print(f"{parser.prog}: {type(error).__name__}: {reason}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(_main())
