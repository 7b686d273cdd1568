"""The CUDA layer under the trial: device and errors (``driver``), memory that can be lent to another process
(``memory``), launches of a resolved plan (``launch``), and the stopwatch (``timing``).

It knows nothing of problems, tolerances or verdicts. Importing any of its modules needs no GPU, no driver and no
torch; the first use without them says so as a :class:`~engine.domain.errors.DeviceError`.
"""
