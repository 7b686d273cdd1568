"""Fixtures of the sandbox in which compilers run."""

import asyncio

import pytest
from support.sandboxes import bubblewrap, cache_root, confinement

from engine.domain.errors import ToolchainError
from engine.toolchain.compilers import Compiler, find_nvcc

__all__ = ["bubblewrap", "cache_root", "confinement"]


@pytest.fixture(scope="session")
def nvcc() -> Compiler:
    """nvcc; the test is skipped without it."""
    try:
        return asyncio.run(find_nvcc())
    except ToolchainError as error:
        pytest.skip(str(error))
