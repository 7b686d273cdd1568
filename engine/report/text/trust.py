"""The question whether something from elsewhere may run, as rows for the command line and the screen."""

from __future__ import annotations

from engine.domain.trust import PathKind, ServerAccess, TrustQuestion
from engine.report.text.lines import Span, Tone, one_line

_DIGITS = 16


def rows(asked: TrustQuestion) -> list[tuple[str, Span]]:
    """(name, value): what it would run and contact."""
    found = [(asked.kind.value, Span(asked.path, Tone.STRONG))]
    if asked.why:
        found.append(("not trusted", Span(asked.why)))
    found.append(("reference", Span(f"{one_line(asked.problem)}, {_origin(asked)}")))
    found.append(("", Span(f"{asked.size} bytes, sha256 {asked.needs.reference[:_DIGITS]}…", Tone.FAINT)))
    if asked.unsandboxed:
        found.append(("", Span(f"runs with your rights: {asked.unsandboxed}", Tone.WARN)))
    else:
        found.append(("", Span("runs in the sandbox")))
    if asked.kind is PathKind.PROBLEM:
        return found
    for command in asked.needs.commands:
        found += [("command", Span(one_line(command), Tone.WARN)), ("", Span("runs with your rights and your environment"))]
    found += [("server", Span(_server(one), Tone.WARN)) for one in asked.servers]
    if not asked.needs.commands:
        found.append(("commands", Span("none")))
    if not asked.servers:
        found.append(("servers", Span("none")))
    return found


def _origin(asked: TrustQuestion) -> str:
    if asked.ships:
        return "ships with Espalier"
    if asked.altered:
        return "not the text that ships under this name"
    return f"read from {one_line(asked.file)}" if asked.file else "from an unknown file"


def _server(one: ServerAccess) -> str:
    unset = "" if one.key_set else ", which is not set now"
    key = f"gets the key in {one_line(one.key)}{unset}" if one.key else "gets no key"
    return f"{one_line(one.address)} ({one.server.provider}) {key}"
