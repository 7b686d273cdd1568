"""``espalier session import`` and ``session delete``: the files of a session, and sessions given as a bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import show, show_json
from engine.cli.session_access import session_argument
from engine.cli.streams import stdin_is_terminal
from engine.cli.verbosity import quiet
from engine.export import bundle
from engine.journal import store, user_folders
from engine.report.text.shell import shell_name
from engine.session import trust


@click.command("import")
@click.argument("file", type=o.PATH)
@o.json_option
def import_session(file: Path, as_json: bool) -> None:
    """Unpack FILE, a bundle that `espalier export --format bundle` wrote, into the folder of sessions.

    Checks every file against its checksum and overwrites nothing.
    """
    folder = import_bundle(file)
    if as_json:
        show_json({"session": str(folder)})
        return
    show([f"imported {file} as {folder}"])
    if not quiet():
        show([f"next: espalier open {shell_name(folder)}, or espalier replay {shell_name(folder)}"])


def import_bundle(file: Path) -> Path:
    """The folder that the bundle was unpacked into: named like the file, with a number where that name exists."""
    root, stem = user_folders.sessions_root(), bundle.session_name(file)
    number = 1
    while True:
        folder = root / (stem if number == 1 else f"{stem}-{number}")
        if not folder.exists():
            bundle.unpack(file, folder)
            trust.confirmed_bundle(file, folder)
            return folder
        number += 1


def imported_or_resolved(text: str) -> Path:
    """The session of this name or folder; a bundle is imported first, and the command says where. Raises JournalError."""
    if not bundle.is_bundle(Path(text)):
        return store.resolve(text)
    folder = import_bundle(Path(text))
    show([f"imported {text} as {folder}"], err=True)
    return folder


@contextmanager
def unpacked_or_resolved(text: str) -> Iterator[Path]:
    """The session of this name or folder; a bundle is unpacked into a temporary folder for as long. Raises JournalError."""
    if not bundle.is_bundle(Path(text)):
        yield store.resolve(text)
        return
    with tempfile.TemporaryDirectory(prefix="espalier-replay-") as place:
        yield bundle.unpack(Path(text), Path(place) / bundle.session_name(Path(text)))


@click.command()
@session_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@o.json_option
def delete(session: str, yes: bool, as_json: bool) -> None:
    """Delete SESSION: its journal and its blobs. Files that are not part of a session stay."""
    folder = store.resolve(session)
    store.require_deletable(folder)
    if not yes:
        if as_json or not stdin_is_terminal():
            raise CommandExit(BAD_INPUT, f"session {folder.name} is not deleted: confirm with --yes")
        click.confirm(f"Delete session {folder}?", abort=True, err=True)
    store.delete(folder)
    if as_json:
        show_json({"session": str(folder.absolute()), "deleted": True})
    else:
        show([f"deleted {folder}"])
