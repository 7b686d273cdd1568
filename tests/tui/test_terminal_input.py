"""What a terminal sends: pastes are no keys, and no byte ends the program."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from support import ui
from support.program import command
from support.window import Window
from textual import events
from textual.widgets import Input

from tui.screens.dialogs import AskLine
from tui.terminal_input import TerminalInput, pasted_words

BEGIN, END = b"\x1b[200~", b"\x1b[201~"
HOSTILE = b"q\x1bq\x1b\x1b[A \x1b[31mred\x1b[0m\x1bOP\x1b[<0;3;3M\x11\x1b[I\x1b"
"""What acts outside a paste: quit, escape, arrows, function keys, clicks, focus."""


def sent(*reads: bytes) -> list[events.Event]:
    terminal = TerminalInput()
    found = [event for read in reads for event in terminal.events_of(read)]
    return [event for event in found if isinstance(event, events.Event)]


def words_of(found: Iterable[events.Event]) -> list[str]:
    return [
        one.text if isinstance(one, events.Paste) else one.key for one in found if isinstance(one, events.Paste | events.Key)
    ]


def test_an_esc_in_a_paste_is_no_key() -> None:
    (paste,) = sent(BEGIN + HOSTILE + END)
    assert isinstance(paste, events.Paste)
    assert paste.text == "qq redOP"


def test_a_paste_in_any_number_of_reads_is_one_paste() -> None:
    whole = b"j" + BEGIN + HOSTILE + "é漢\n".encode() + END + b"k"
    for size in (1, 2, 3, 5, 7, 13):
        reads = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert words_of(sent(*reads)) == ["j", "qq redOPé漢\n", "k"]


def test_an_esc_in_a_paste_that_waits_for_more_is_no_key() -> None:
    terminal = TerminalInput()
    found = list(terminal.events_of(BEGIN + b"a\x1b"))
    terminal._parser._timeout_time = 0.0
    found += [*terminal.overdue_events(), *terminal.events_of(b"q" + END)]
    assert words_of(one for one in found if isinstance(one, events.Event)) == ["aq"]


def test_an_end_within_a_paste_does_not_end_it() -> None:
    assert words_of(sent(BEGIN + b"a" + END + b"q" + END)) == ["aq"]


def test_two_pastes_in_a_read_are_two() -> None:
    assert words_of(sent(BEGIN + b"a" + END + b"j" + BEGIN + b"b" + END)) == ["a", "j", "b"]


def test_keys_and_clicks_outside_pastes_are_as_before() -> None:
    keys = sent(b"a\x1b[A\x1bOP\x1b[<0;3;4M", b"\xc3", b"\xa9")
    assert [one.key for one in keys if isinstance(one, events.Key)] == ["a", "up", "f1", "é"]
    assert any(isinstance(one, events.MouseDown) and (one.x, one.y) == (2, 3) for one in keys)


def test_an_esc_alone_is_the_key() -> None:
    terminal = TerminalInput()
    assert not list(terminal.events_of(b"\x1b"))
    terminal._parser._timeout_time = 0.0
    (key,) = terminal.overdue_events()
    assert isinstance(key, events.Key)
    assert key.key == "escape"


@pytest.mark.parametrize("strange", [b"\xff", b"\xe9", b"\xc3\x28", b"\x1b[1114112u", b"\x1b[::u", b"\x1b[99999999999999u"])
def test_what_cannot_be_read_is_no_key_and_no_end(strange: bytes) -> None:
    found = words_of(sent(strange, b"j", b"k"))
    assert found[-2:] == ["j", "k"]
    assert "�" not in found


@pytest.mark.slow
def test_random_bytes_never_end_the_reader() -> None:
    dice = random.Random(3)
    terminal = TerminalInput()
    alphabet = [
        b"\x1b",
        b"\x1b[",
        b";",
        b":",
        b"u",
        b"M",
        b"<",
        b"~",
        b"R",
        b"9",
        b"0",
        b"\xff",
        b"\xc3",
        b"t",
        b"?",
        BEGIN,
        END,
    ]
    for _ in range(5000):
        list(terminal.events_of(b"".join(dice.choices(alphabet, k=dice.randrange(1, 12)))))
        list(terminal.overdue_events())
    list(terminal.events_of(END))
    assert words_of(one for one in terminal.events_of(b"\x1b[A\x1b[A") if isinstance(one, events.Event))[-1] == "up"


def test_pasted_code_keeps_its_lines_and_tabs() -> None:
    assert pasted_words("if (a)\r\n\treturn\x00 b;\x1b[0m\x1b(B\n") == "if (a)\r\n\treturn b;\n"


@pytest.mark.slow
def test_lines_pasted_into_a_field_of_one_line_all_arrive() -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(100, 30)) as pilot:
            app.push_screen(dialog := AskLine("Instruct", "for every later prompt"))
            await ui.until(pilot, lambda: app.screen is dialog and isinstance(app.focused, Input))
            app.post_message(events.Paste("\nno atomics\r\n\tuse warps  \n"))
            await ui.until(pilot, lambda: dialog.query_one(Input).value == "no atomics use warps")

    asyncio.run(body())


@pytest.mark.slow
def test_a_program_lives_through_what_it_cannot_read(tmp_path: Path, windows: list[Window]) -> None:
    window = Window(command("replay", "layernorm"), tmp_path, controlling=True)
    windows.append(window)
    window.sees(b"outcome")
    window.type(b"\xff\xe9")
    window.type(b"\x1b[1114112u")
    window.type(BEGIN + HOSTILE + END)
    window.shown = b""
    window.type(b"?")
    window.sees(b"Keys and symbols")
    window.type(b"q")
    window.type(b"\x11")
    assert window.process.wait(30) == 0
