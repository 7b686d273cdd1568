"""Following a session in a browser: the server answers on localhost; a tab follows and cannot steer."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import sessions, ui
from support.program import environment
from support.ui import until

from tui import watch


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_error_of_the_server_is_one_line(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tui.watch", str(tmp_path / "none")]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment(tmp_path), timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_the_page_has_a_title_and_asks_no_other_host() -> None:
    page = (watch.TEMPLATES / "app_index.html").read_text()
    places = re.findall(r"""(?:href|src)=["']([^"']*)["']|url\(["']?([^"')]*)""", page)
    assert len(places) >= 4
    assert all(place.startswith(("{{ config.static.url }}", "data:,")) for one in places for place in one if place)
    assert "<title>{{ application.name }}</title>" in page
    (policy,) = re.findall(r'content="(default-src[^"]*)"', page)
    allowed = {source for rule in policy.split(";") for source in rule.split()[1:]}
    assert {one for one in allowed if not one.startswith("'")} == {"ws://localhost:*", "data:", "blob:"}


NEEDS_SERVER = pytest.mark.skipif(importlib.util.find_spec("textual_serve") is None, reason="needs textual-serve")
DRIVER = shutil.which("chromedriver")


@contextlib.contextmanager
def served(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    """A server of a session: its port, and the page of a tab."""
    sessions.whole(tmp_path / "s")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    call = [sys.executable, "-m", "tui.watch", str(tmp_path / "s"), "--port", str(port)]
    server = subprocess.Popen(call, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def read() -> bytes:
            with urllib.request.urlopen(f"http://localhost:{port}/", timeout=5) as answer:
                return bytes(answer.read())

        page = eventually(read)
        yield port, page
    finally:
        server.terminate()
        server.wait(10)


@pytest.mark.slow
@NEEDS_SERVER
def test_the_server_answers(tmp_path: Path) -> None:
    with served(tmp_path) as (port, page):
        assert b"<title>Espalier: s</title>" in page
        assert set(re.findall(rb"(?:https?|wss?)://([^/\"' *]+)", page)) == {b"localhost:%d" % port, b"localhost:"}
        for place in re.findall(rb"""["'](http://localhost[^"']*\.(?:css|js|ttf))["']""", page):
            with urllib.request.urlopen(place.decode(), timeout=5) as answer:
                assert answer.status == 200


@contextlib.contextmanager
def browser() -> Iterator[Callable[[str, str, object], Any]]:
    """A headless Chromium: the calls of its WebDriver."""
    assert DRIVER is not None
    with socket.socket() as free:
        free.bind(("localhost", 0))
        root = f"http://localhost:{free.getsockname()[1]}"
    driver = subprocess.Popen(
        [DRIVER, f"--port={root.rpartition(':')[2]}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def call(method: str, path: str, body: object) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        with urllib.request.urlopen(urllib.request.Request(f"{root}{path}", data, method=method), timeout=60) as answer:
            return json.load(answer)["value"]

    try:
        eventually(lambda: call("GET", "/status", None)["ready"])
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu"]}
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        session = f"/session/{call('POST', '/session', wanted)['sessionId']}"
        yield lambda method, path, body: call(method, f"{session}{path}", body)
        call("DELETE", session, None)
    finally:
        driver.terminate()
        driver.wait(10)


def eventually(true: Callable[[], Any]) -> Any:
    """The first true answer; a refused connection counts as none."""
    end = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError):
            if found := true():
                return found
        assert time.monotonic() < end
        time.sleep(0.1)


@NEEDS_SERVER
@pytest.mark.slow
@pytest.mark.skipif(DRIVER is None, reason="needs the Debian packages chromium and chromium-driver")
def test_chromium_draws_the_session_and_asks_no_other_host(tmp_path: Path) -> None:
    with served(tmp_path) as (port, _), browser() as call:

        def run(script: str) -> Any:
            return call("POST", "/execute/sync", {"script": f"return {script}", "args": []})

        call("POST", "/url", {"url": f"http://localhost:{port}/"})
        assert call("GET", "/title", None) == "Espalier: s"
        eventually(lambda: run("document.body.classList.contains('-first-byte')"))
        run("document.fonts.load('16px \\'Roboto Mono\\'').then(fonts => fonts.length)")
        asked = run("performance.getEntriesByType('resource').map(one => one.name)")
        assert any("RobotoMono" in one for one in asked)
        assert {urllib.parse.urlsplit(one).netloc for one in asked if not one.startswith("data:")} == {f"localhost:{port}"}
