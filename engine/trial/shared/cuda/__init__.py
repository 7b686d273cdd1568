"""The CUDA layer of the trial: device and errors (``driver``), memory lent to another process (``device_memory``), launch
structures (``packing``), the stopwatch's kernel (``hold_kernel``), a compiler for kernels of our own (``nvrtc``).

Importing its modules needs no GPU, no driver and no torch; the first use without them raises
:class:`~engine.domain.errors.DeviceError`.
"""
