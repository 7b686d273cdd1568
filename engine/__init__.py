"""Espalier's engine: everything from a reference to a measured tree of kernels, without a user interface.

ARCHITECTURE.md names the rooms and the direction of their imports.
"""
