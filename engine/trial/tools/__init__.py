"""Tools that run a kernel outside its trial: sanitizers, Nsight Compute and perf, with the parsers of their output."""
