"""The CUDA layer under the trial: device and errors (``driver``), memory that can be lent to another process
(``device_memory``) and the bytes of a launch (``packing``).

It knows nothing of problems, tolerances or verdicts. Importing its modules needs no GPU, no driver and no torch; the first use
without them raises :class:`~engine.domain.errors.DeviceError`.
"""
