"""Following a session in a browser: the server answers on localhost; a tab follows and cannot steer."""

from __future__ import annotations

import importlib.util
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from support import sessions, ui
from support.program import environment
from support.ui import until

from tui import watch


def test_a_browser_tab_follows_and_cannot_steer(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    assert shlex.split(watch.command(tmp_path / "s"))[1:] == ["-m", "tui.watch", "--here", str(tmp_path / "s")]

    async def body() -> None:
        app = ui.app(None, "follow", tmp_path / "s")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            assert not app.screen.check_action("pin", ())
            await pilot.press("p", "x", "P")
            await app._leave()

    before = (tmp_path / "s" / "journal.jsonl").read_bytes()
    sessions.run(body)
    assert (tmp_path / "s" / "journal.jsonl").read_bytes() == before


def test_an_error_of_the_server_is_one_line(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tui.watch", str(tmp_path / "none")]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment(tmp_path), timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.skipif(importlib.util.find_spec("textual_serve") is None, reason="needs textual-serve")
def test_the_server_answers(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    call = [sys.executable, "-m", "tui.watch", str(tmp_path / "s"), "--port", str(port)]
    server = subprocess.Popen(call, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        page = b""
        while not page and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://localhost:{port}/", timeout=5) as answer:
                    page = answer.read()
            except OSError:
                time.sleep(0.1)
        assert b"Espalier: s" in page
    finally:
        server.terminate()
        server.wait(10)
