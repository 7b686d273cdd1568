"""Shared by judge and runner: lent memory, its layout, the argument codec, the CUDA driver."""
