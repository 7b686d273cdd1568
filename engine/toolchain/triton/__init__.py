"""The ``triton`` dialect: ``@triton.jit`` and Gluon functions under the plan contract, compiled ahead of the device."""
