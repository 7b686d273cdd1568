"""Imports of shared objects are read from their dynamic symbols; strings with the same text do not count."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.toolchain.elf import imported_symbols, starts_threads

PINNED = {
    "a string": 'extern "C" const char* launch() { return "pthread_create _ZNSt6thread thrd_create"; }',
    "a section": '__asm__(".pushsection .comment\\n.asciz \\"pthread_create\\"\\n.popsection"); extern "C" void launch() {}',
    "a symbol of its own": 'extern "C" int thrd_create() { return 1; } extern "C" int launch() { return thrd_create(); }',
    "a team": 'extern "C" void launch(float* x) {\n#pragma omp parallel for\nfor (int i = 0; i < 9; ++i) x[i] = i; }',
}
FREE = {
    "pthread": '#include <pthread.h>\nextern "C" void launch(pthread_t* t, void* (*f)(void*)) { pthread_create(t, 0, f, 0); }',
    "C": '#include <threads.h>\nextern "C" void launch(thrd_t* t, thrd_start_t f) { thrd_create(t, f, 0); }',
    "a thread": '#include <thread>\nextern "C" void launch(int* x) { std::thread([x] { *x = 1; }).join(); }',
    "a task": '#include <future>\nextern "C" int launch() { return std::async(std::launch::async, [] { return 1; }).get(); }',
}


def linked(folder: Path, source: str, *flags: str) -> Path:
    text, binary = folder / "kernel.cpp", folder / "kernel.so"
    text.write_text(source)
    command = ["g++", "-std=c++20", "-O1", "-fopenmp", "-fPIC", "-shared", *flags, "-o", str(binary), str(text)]
    subprocess.run(command, check=True, capture_output=True)
    return binary


@pytest.mark.parametrize("what", PINNED)
def test_strings_that_name_thread_functions_do_not_count(tmp_path: Path, what: str) -> None:
    assert not starts_threads(linked(tmp_path, PINNED[what]))


@pytest.mark.slow
@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
@pytest.mark.parametrize("what", FREE)
def test_imports_that_start_threads_are_found(tmp_path: Path, what: str, style: str) -> None:
    assert starts_threads(linked(tmp_path, FREE[what], f"-Wl,--hash-style={style}"))


@pytest.mark.slow
def test_symbols_are_read_without_section_headers(tmp_path: Path) -> None:
    image = bytearray(linked(tmp_path, FREE["pthread"]).read_bytes())
    image[0x28:0x30] = bytes(8)
    image[0x3C:0x3E] = bytes(2)
    assert "pthread_create" in imported_symbols(bytes(image))


def test_other_and_truncated_files_are_rejected(tmp_path: Path) -> None:
    image = linked(tmp_path, FREE["pthread"]).read_bytes()
    for damaged in (b"", b"#!/bin/sh", image[:100], image[:0x200], image[:4] + b"\x01" + image[5:]):
        with pytest.raises(ValueError, match="ELF"):
            imported_symbols(damaged)
