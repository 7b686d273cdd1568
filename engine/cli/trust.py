"""``espalier trust``: show what a session, bundle or problem from elsewhere would run, and allow it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import show, show_json
from engine.cli.streams import stdin_is_terminal
from engine.domain.errors import JournalError
from engine.domain.trust import PathKind, Permissions, Server, TrustQuestion
from engine.journal import trust_records
from engine.journal.trust_records import TrustRecord
from engine.report.text import trust as text
from engine.report.text.lines import Span, Tone, counted, fields, line, one_line, table
from engine.session import trust as trusting

EPILOG = """\b
Exit status: 0 allowed (or listed, or revoked), 2 bad input, or not confirmed, 130 declined."""


@click.command(epilog=EPILOG)
@click.argument("paths", type=o.SESSION, metavar="[PATH]...", nargs=-1)
@click.option("--code", is_flag=True, help="Also print the reference.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--list", "listing", is_flag=True, help="List what is allowed.")
@click.option("--revoke", is_flag=True, help="Remove the permission of each PATH.")
@o.json_option
def trust(paths: tuple[str, ...], code: bool, yes: bool, listing: bool, revoke: bool, as_json: bool) -> None:
    """Show what PATH would run, and allow it once you confirm.

    PATH is a session, a bundle, or a problem's folder or file. What was made on this machine is allowed already. Anything else
    runs nothing until you allow it: its reference, the command lines of its proposers and writers, and its servers with the key
    that each would get are shown. A permission belongs to the path and to what was shown: if the session later names another
    command, server or reference, you are asked again. Reading needs no permission: replay, follow, export, show.
    """
    if listing and (revoke or yes or paths):
        raise CommandExit(BAD_INPUT, "--list takes no PATH and no other option")
    if listing:
        _list(as_json)
        return
    if not paths:
        raise CommandExit(BAD_INPUT, "name a session, a bundle or a problem, or give --list")
    if revoke:
        _revoke(paths, as_json)
        return
    asked = [trusting.question(path) for path in dict.fromkeys(paths)]
    if as_json:
        _allow_json(asked, yes)
        return
    for one in asked:
        show(fields(text.rows(one)))
        if code:
            show(["", *one.code.splitlines(), ""])
        _allow(one, yes)


def _allow(asked: TrustQuestion, yes: bool) -> None:
    if not asked.why:
        show(["nothing to allow: it is trusted"])
        return
    if not yes:
        _refuse_without_terminal([asked])
        click.confirm(f"Allow this {asked.kind}?", abort=True, err=True)
    trusting.confirm(asked)
    show([f"allowed {asked.path}"])


def _allow_json(asked: list[TrustQuestion], yes: bool) -> None:
    for one in asked:
        if yes and one.why:
            trusting.confirm(one)
    show_json({"paths": [_question_fields(one, not one.why or yes) for one in asked]})
    if not yes:
        _refuse_without_terminal([one for one in asked if one.why], answers=False)


def _refuse_without_terminal(asked: list[TrustQuestion], *, answers: bool = True) -> None:
    if asked and not (answers and stdin_is_terminal()):
        raise CommandExit(BAD_INPUT, f"{asked[0].path} is not allowed: confirm with `espalier trust {asked[0].name} --yes`")


def _question_fields(asked: TrustQuestion, allowed: bool) -> Mapping[str, object]:
    reference = {
        "problem": asked.problem, "file": asked.file, "bytes": asked.size, "sha256": asked.needs.reference, "ships": asked.ships
    }  # fmt: skip
    servers = [{**_server_fields(one.server), "key": one.key, "key_set": one.key_set} for one in asked.servers]
    return {
        "path": asked.path, "kind": asked.kind.value, "trusted": allowed, "why": asked.why, "reference": reference,
        "sandbox": "limits" if asked.unsandboxed else "bubblewrap", "commands": list(asked.needs.commands), "servers": servers,
    }  # fmt: skip


def _server_fields(server: Server) -> Mapping[str, object]:
    return {"provider": server.provider, "base_url": server.url or None, "key_variable": server.key or None}


def _list(as_json: bool) -> None:
    found = list(trust_records.records())
    good = [one for one in found if isinstance(one, TrustRecord)]
    damaged = [str(one) for one in found if isinstance(one, JournalError)]
    if as_json:
        show_json({"paths": [_record_fields(one) for one in good], "damaged": damaged})
        return
    show(table([_record_row(one) for one in good]) or ["nothing is recorded: sessions from elsewhere ask first"])
    show([line(Span(f"{one}; it allows nothing", Tone.WARN)) for one in damaged])


def _record_fields(one: TrustRecord) -> Mapping[str, object]:
    return {
        "path": one.path, "kind": one.kind.value, "made_here": not one.confirmed, "at": one.at,
        "exists": Path(one.path).exists(), "sha256": one.needs.reference, "commands": list(one.needs.commands),
        "servers": [_server_fields(server) for server in one.needs.servers],
    }  # fmt: skip


def _record_row(one: TrustRecord) -> list[Span]:
    when = f"{datetime.fromtimestamp(one.at, UTC).astimezone():%Y-%m-%d %H:%M}"
    how = "allowed" if one.confirmed else "made here"
    gone = "" if Path(one.path).exists() else ", no longer there"
    where = Span(one.path, Tone.STRONG)
    return [where, Span(one.kind.value), Span(f"{how} {when}{gone}", Tone.FAINT), Span(_needs_words(one.kind, one.needs))]


def _needs_words(kind: PathKind, needs: Permissions) -> str:
    if kind is PathKind.PROBLEM or not (needs.commands or needs.servers):
        return "its reference"
    asked = [one_line(server.url or server.provider) for server in needs.servers]
    commands = [counted(len(needs.commands), "command")] if needs.commands else []
    return ", ".join(["its reference", *commands, *asked])


def _revoke(paths: tuple[str, ...], as_json: bool) -> None:
    revoked: list[str] = []
    unknown: list[str] = []
    for one in dict.fromkeys(paths):
        path = trusting.revoke(one)
        (unknown if path is None else revoked).append(one if path is None else str(path))
    if as_json:
        show_json({"revoked": revoked})
    else:
        show([f"revoked {one}" for one in revoked])
    if unknown:
        raise CommandExit(BAD_INPUT, f"no permission is recorded for {unknown[0]}: `espalier trust --list` lists them")
