"""``Module.to``, ``half`` and their like on fake tensors, where torch's own raise. Imports torch.

Torch swaps the contents of a fake parameter with those of the converted one, and refuses to where anything refers to it weakly,
as the fake mode itself does. Models that convert themselves could not be traced without running them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def convertible_modules() -> Iterator[None]:
    """Within, the conversion of a module gives its fake parameters the converted contents in place, as of real ones."""
    own: Callable[..., nn.Module] = nn.Module._apply

    def apply(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        parameters = [one for one in module._parameters.values() if one is not None]
        if not all(isinstance(one, FakeTensor) for one in parameters):
            return own(module, function, recurse)
        if recurse:
            for child in module.children():
                child._apply(function)  # type: ignore[no-untyped-call]
        for parameter in parameters:
            converted = function(parameter)
            parameter.data = converted
            if isinstance(converted, FakeTensor):
                parameter.fake_device = converted.fake_device  # type: ignore[attr-defined]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
        return module

    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = own  # type: ignore[method-assign]
