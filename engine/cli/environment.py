"""The environment variables and configuration files that users may set, with what is in effect."""

from __future__ import annotations

import os
from pathlib import Path

from engine.cli import config
from engine.journal import user_folders
from engine.toolchain.cache import cache_folder
from engine.trial.lease import lease_folder


def _shown(path: Path) -> str:
    """The path with ``~`` for the home folder."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)


def variables() -> list[tuple[str, str]]:
    """(variables, what they set) for the help."""
    return [
        ("ESPALIER_HOME", f"Sessions, log and configuration. Sessions now: {_shown(user_folders.sessions_root())}"),
        ("ESPALIER_CACHE", f"Compiled kernels and baselines. Now: {_shown(cache_folder().parent)}"),
        ("ESPALIER_CACHE_GB, ESPALIER_CACHE_DAYS", "Limits of the build cache. Default: 5 GB, 30 days since last use."),
        ("ESPALIER_LEASES", f"Leases on devices, for all users of the machine. Now: {lease_folder()}"),
        ("ESPALIER_INCLUDE", "Header folders that kernels may include, as --include. Default: [build] include of config.toml."),
        ("ESPALIER_BUILD_GB", "Memory of all compilers together. Default: half of the machine's."),
        ("ESPALIER_MEMORY_GB", "Device memory that the judge plans with. Default: what is free."),
        ("OPENAI_API_KEY, OPENAI_BASE_URL", "Key and server for openai:MODEL."),
        ("ANTHROPIC_API_KEY", "Key for anthropic:MODEL."),
        ("GEMINI_API_KEY, GOOGLE_API_KEY", "Key for gemini:MODEL."),
        ("VERTEX_API_KEY, GOOGLE_CLOUD_PROJECT, GOOGLE_CLOUD_LOCATION", "Key, or project and location, for vertex:MODEL."),
        ("AZURE_OPENAI_API_KEY, AZURE_OPENAI_ENDPOINT", "Key and server for azure:DEPLOYMENT."),
        ("OPENROUTER_API_KEY", "Key for openrouter:MODEL."),
        ("VLLM_API_KEY, OLLAMA_API_KEY", "Keys for vllm:MODEL and ollama:MODEL on this machine, if the servers need one."),
        ("ESPALIER_AGENT", "Name of the coding agent that runs the command: it may propose and write, but not decide."),
        ("ESPALIER_MCP_TOKEN", "Token of `espalier mcp --http`. Default: a new one."),
        ("CUDA_HOME, CUDA_PATH", "The CUDA toolkit. Default: PATH, then /usr/local/cuda."),
        ("CUDA_VISIBLE_DEVICES", "The GPUs to use."),
        ("NO_COLOR", "Print without colour."),
        ("VISUAL, EDITOR", "Editor of the terminal UI."),
    ]


def configuration() -> list[tuple[str, str]]:
    """(file, whether it is in effect) for the help and ``doctor``."""
    found = [(config.user_file(), "the user's"), (config.project_file(), "the project's, the nearest upwards")]
    return [
        (_shown(path), f"{whose}: {_effect(path)}") if path is not None
        else (config.PROJECT, f"{whose}: none above the working folder")
        for path, whose in found
    ]  # fmt: skip


def _effect(path: Path) -> str:
    if path.is_file():
        return "in effect"
    return "not a file: commands stop there" if os.path.lexists(path) else "not present"
