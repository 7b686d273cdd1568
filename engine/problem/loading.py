"""Executes a reference's file with a workload's settings, and makes its inputs and model. Imports torch.

Exceptions of the file become ProblemError with the file's own line. Knows KernelBench's calling conventions; nothing of
operands, outputs or precision.
"""

from __future__ import annotations

import inspect
import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from engine.domain.errors import DeviceError, ProblemError
from engine.domain.model import Problem, Workload
from engine.problem.arguments import argument_objects
from engine.problem.arguments.values import contiguous, kind_without_strides, map_arguments, tensors
from engine.problem.attachments import Attachments
from engine.problem.files import reference_code
from engine.problem.files.class_definitions import definitions
from engine.problem.files.source_module import source_module
from engine.problem.reference_step import StepTooLong, one_step
from engine.problem.torch_modes.cleared_memory import ClearedMemory

Made = TypeVar("Made")

_COUNT = itertools.count()
_LONGEST_REASON = 240
_STACK_OF_TORCH = "\nException raised from "
"""Some of torch's messages go on with the frames of its own C++ code."""
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_ARGUMENTS_AND_KEYWORDS = 2


@dataclass(frozen=True, slots=True)
class Construction:
    """The arguments of ``Model`` from ``get_init_inputs``, by position and by name."""

    positional: tuple[object, ...]
    named: Mapping[str, object]


class LoadedReference:
    """A reference's module, executed with the settings of one workload; ``file`` is its name in messages and tracebacks."""

    def __init__(self, problem: Problem, workload: Workload) -> None:
        self.file = _file_name(problem)
        self._workload = workload
        self.tree = reference_code.parse(problem.reference, self.file)
        reference_code.check_entry_points(self.tree, self.file)
        tree = reference_code.without_type_checks(reference_code.with_settings(self.tree, workload.settings))
        if not torch.cuda.is_available():
            # Some references name the device that they are written for; here it is the CPU.
            tree = reference_code.with_device(tree, "cpu")
        self._executed = tree
        self._attached = frozenset(name.removesuffix(".py") for name in problem.attachments)
        self.module = source_module(f"{argument_objects.MODULES}{next(_COUNT)}", self.file, problem.reference)
        with self.explain_errors("running the file"):
            Attachments(problem.attachments).install()
            exec(compile(tree, self.file, "exec", dont_inherit=True), self.module.__dict__)
        model = getattr(self.module, "Model", None)
        if not (isinstance(model, type) and issubclass(model, nn.Module)):
            raise ProblemError(f"{self.file}: Model is not a subclass of torch.nn.Module: derive it from nn.Module")
        self.model_class: type[nn.Module] = model

    def make_inputs(self, device: torch.device, *, clears: bool = True) -> tuple[object, ...]:
        """``get_inputs()`` with ``device`` as the default one; tensors detached, contiguous and all on ``device``.

        What it leaves uninitialised is zero, unless nothing ``clears`` it: fake tensors have no contents.
        """
        get_inputs = self._function("get_inputs")
        with self.explain_errors("get_inputs()", device), torch.no_grad():
            with ClearedMemory() if clears else nullcontext():  # type: ignore[no-untyped-call]
                given = self._on(device, get_inputs)
            if isinstance(given, Tensor):
                given = (given,)
            if not isinstance(given, Sequence) or isinstance(given, str | bytes):
                raise ProblemError(
                    f"{self.file}: get_inputs() returns a {type(given).__name__}: return the list of forward's arguments"
                )
            self._check_count(tuple(given))
            self._check_objects(tuple(given))
            for tensor in tensors(tuple(given)):
                if kind := kind_without_strides(tensor):
                    raise ProblemError(f"{self.file}: get_inputs() returns a {kind} tensor: only dense tensors are supported")
            return map_arguments(lambda t: contiguous(t.to(device)), tuple(given))

    def _check_count(self, given: tuple[object, ...]) -> None:
        """Raises ProblemError where ``forward`` cannot be called with so many arguments."""
        forward = inspect.getattr_static(self.model_class, "forward")
        own = 0 if isinstance(forward, staticmethod) else 1
        try:
            signature = inspect.signature(forward)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*[None] * own, *given)
        except TypeError:
            taken = list(signature.parameters)[own:]
            raise ProblemError(
                f"{self.file}: get_inputs() returns {_counted(len(given), 'value')}, Model.forward takes "
                f"{_counted(len(taken), 'argument')} ({', '.join(taken) or 'none'}): return one value for each argument"
            ) from None

    def _check_objects(self, given: tuple[object, ...]) -> None:
        for name, argument in zip(self.forward_names(len(given)), given, strict=True):
            if kind := argument_objects.unsupported(argument):
                raise ProblemError(
                    f"{self.file}: get_inputs() returns a {kind} in the argument {name}: only objects of dataclasses and "
                    "torch modules that the reference itself defines at its top level, without hooks, are supported"
                )

    def class_definitions(self, given: tuple[object, ...]) -> tuple[list[str], str]:
        """The names of the classes of the objects among ``forward``'s arguments, and the code that defines them."""
        names = sorted(argument_objects.classes(given))
        return names, definitions(self._executed, names, self._attached, self.file) if names else ""

    def make_model(self, device: torch.device, *, there: bool = False) -> nn.Module:
        """``Model(*get_init_inputs())``, made on the CPU as KernelBench does, then moved; its mode is unchanged.

        ``there``: made on ``device``, if it can be. A GPU draws large weights a hundred times faster; they are other ones.
        """
        construction = self.construction()
        with self.explain_errors("making Model(*get_init_inputs())", device), torch.no_grad():
            made = partial(self.model_class, *construction.positional, **construction.named)
            model = self._on(device, made) if there else made()
            # Module.to cannot convert tensors without contents; those are made in place.
            if any(t.device != device for t in (*model.parameters(), *model.buffers())):
                model = model.to(device)
            for module in model.modules():
                for name, tensor in plain_tensors(module):
                    vars(module)[name] = tensor.detach().to(device)
            return model

    def format_check(self, inputs: Sequence[object], outputs: Sequence[Tensor]) -> tuple[bool, str]:
        """The generated ``format_check`` on copies. A checker returns (right, message), or a message that is empty if right."""
        copies = map_arguments(lambda t: t.clone(), (tuple(inputs), tuple(outputs)))
        with self.explain_errors("format_check()"), torch.no_grad():
            found = self.module.format_check(*copies)
        if isinstance(found, tuple):
            return bool(found[0]), " ".join(str(found[1]).split()) if len(found) > 1 else ""
        return not found, " ".join(str(found or "").split())

    def construction(self) -> Construction:
        """The result of ``get_init_inputs`` as arguments.

        A list is positional; a dictionary, or one that ends a list, is by name where its keys are parameters of
        ``Model``; ``[[...], {...}]`` is both.
        """
        with self.explain_errors("get_init_inputs()"):
            given = self._function("get_init_inputs")()
        if isinstance(given, Mapping):
            return Construction((), dict(given))
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            given = () if given is None else (given,)
        items = tuple(given)
        if items and isinstance(items[-1], Mapping):
            named = {str(key): value for key, value in items[-1].items()}
            both = len(items) == _ARGUMENTS_AND_KEYWORDS and isinstance(items[0], list | tuple)
            for positional in ([tuple(items[0])] if both else []) + [items[:-1]]:
                if self._binds(positional, named):
                    return Construction(positional, named)
        return Construction(items, {})

    def init_arguments(self) -> dict[str, object]:
        """Model's arguments by the names of ``__init__``'s parameters, without defaults."""
        construction = self.construction()
        try:
            bound = inspect.signature(self.model_class.__init__).bind(None, *construction.positional, **construction.named)
        except (TypeError, ValueError):
            return {}
        return dict(itertools.islice(bound.arguments.items(), 1, None))

    def numbers(self) -> dict[str, object]:
        """The values of the public names that the file assigns at its top level."""
        assigned, values = reference_code.assigned_names(self.tree), vars(self.module)
        return {name: value for name, value in values.items() if name in assigned and not name.startswith("_")}

    def forward_names(self, count: int) -> list[str]:
        """A name for each of ``count`` positional arguments of ``forward``: its parameter's, numbered for ``*args``."""
        try:
            parameters = list(inspect.signature(self.model_class.forward).parameters.values())[1:]
        except (TypeError, ValueError):
            parameters = []
        labels: list[str] = []
        for parameter in parameters:
            if parameter.kind is parameter.VAR_POSITIONAL:
                labels += [f"{parameter.name}{i}" for i in range(count - len(labels))]
                break
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                labels.append(parameter.name)
        return (labels + [f"arg{i}" for i in range(len(labels), count)])[:count]

    @contextmanager
    def explain_errors(self, doing: str, device: torch.device | None = None) -> Iterator[None]:
        """Within, a step of the reference. Its exceptions become a ProblemError: file, line, the step, the exception."""
        try:
            with one_step():
                yield
        except ProblemError:
            raise
        except (Exception, SystemExit, StepTooLong) as error:
            message = self._explanation(doing, device, error)
            raise ProblemError(message.encode(errors="backslashreplace").decode()) from error  # lone surrogates cannot be sent

    def _explanation(self, doing: str, device: torch.device | None, error: BaseException) -> str:
        where = f"{self.file}{self._line(error)}"
        reason = " ".join(str(error).partition(_STACK_OF_TORCH)[0].split())[:_LONGEST_REASON]
        if is_out_of_memory(error):
            return (
                f"{where}: {doing} with workload {self._workload.name} needs more memory than "
                f"{device or 'this machine'} has free: choose a smaller workload or free the device"
            )
        if isinstance(error, StepTooLong):
            return f"{where}: {doing} with workload {self._workload.name} {reason}: choose a smaller workload"
        remedy = _remedy(error, reason)
        raised = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        return f"{where}: {doing} with workload {self._workload.name} raised {raised}: {remedy}"

    def _line(self, error: BaseException) -> str:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.file]
        return f", line {lines[-1]}" if lines else ""

    def _on(self, device: torch.device, function: Callable[[], Made]) -> Made:
        if device.type == "cpu":
            return function()
        try:
            with device:
                return function()
        except Exception as error:
            if is_out_of_memory(error):
                raise
        # Some references are bound to the CPU (their own generator, NumPy): their tensors are moved afterwards.
        return function()

    def _function(self, name: str) -> Callable[[], object]:
        function = getattr(self.module, name, None)
        if not callable(function):
            raise ProblemError(f"{self.file}: {name} is not a function: define it as KernelBench does")
        return function  # type: ignore[no-any-return]

    def _binds(self, positional: tuple[object, ...], named: Mapping[str, object]) -> bool:
        try:
            inspect.signature(self.model_class.__init__).bind(None, *positional, **named)
        except (TypeError, ValueError):
            return False
        return True


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _remedy(error: BaseException, reason: str) -> str:
    if isinstance(error, ImportError):
        return "install it, or copy the code into the file"
    if "does not require grad" in reason:
        return "forward is called without gradients; compute them in it, under torch.enable_grad()"
    if "uninitialized parameter" in reason:
        return "give lazy layers their sizes (nn.Linear for nn.LazyLinear): kernels get their parameters before a call"
    if asks_for_gpu(reason):
        return "it needs a GPU: run it on a machine with one"
    return "correct the reference or the workload's settings"


_WITHOUT_GPU = (
    "Torch not compiled with CUDA enabled",
    "no NVIDIA driver",
    "No CUDA GPUs are available",
    "0 active drivers",  # Triton
    "CUDA_HOME environment variable is not set",  # torch.utils.cpp_extension, for CUDA sources
)


def asks_for_gpu(reason: str) -> bool:
    """Whether an error says that code needs a GPU, or CUDA to be compiled, where there is none."""
    return any(text in reason for text in _WITHOUT_GPU)


def plain_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Tensors that a module keeps as plain attributes, which ``state_dict`` and ``.to`` ignore."""
    return [(name, value) for name, value in vars(module).items() if isinstance(value, Tensor)]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means out of memory, on the device or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _OUT_OF_MEMORY)


def use_device(label: str) -> torch.device:
    """The device called ``cpu``, ``cuda`` or ``cuda:N``, made the calling thread's current one. Raises DeviceError.

    ``device="cuda"`` in a reference then means this device.
    """
    try:
        device = torch.device(label)
    except RuntimeError as error:
        raise DeviceError(f"unknown device {label!r}: use cpu or cuda:0") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError(f"device {label} not found: PyTorch finds no CUDA device; check the driver or use cpu")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise DeviceError(f"device {label} not found: PyTorch finds {torch.cuda.device_count()} CUDA device(s)")
        if device.index:  # the first one is current from the start
            torch.cuda.set_device(device)
    return device


def _file_name(problem: Problem) -> str:
    """Where the reference's code stands; of a definition, its file and field."""
    if problem.origin_format is not None and problem.origin_format.file:
        return f"{problem.origin_format.file}, reference"
    if not problem.origin:
        return f"{problem.name}/reference.py"
    path = Path(problem.origin)
    if path.is_file() or path.suffix in (".json", ".jsonl", ".yml"):
        path = path.parent if path.suffix != ".py" else path
    return str(path) if path.suffix == ".py" else str(path / "reference.py")
