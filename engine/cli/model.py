"""``espalier model``: a session's models and their options, prompts, replies by hand, usage, and open calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.model_options import changed, model_options
from engine.cli.output import show, show_json, show_text
from engine.cli.session_access import Target, read_state, reason_option, session_argument, steers
from engine.domain import commands as c
from engine.domain import queries
from engine.domain.model_text import NO, YES, duration_text
from engine.domain.settings import ModelSettings
from engine.domain.state import CallStatus, ModelCall, SessionState
from engine.ideas.authoring import unusable_reply
from engine.ideas.factory import check_programs
from engine.ideas.mix import check_models
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.report.facts import usage as facts
from engine.report.facts.usage import CallTotals, refused_before
from engine.report.text.lines import Line, Span, Tone, fields, one_line, table
from engine.report.text.shell import shell_name
from engine.session.steer import Steering

_LARGEST_REPLY = 16 << 20


call_argument = click.argument("call", type=o.CALL)


@click.command()
@session_argument
@click.argument("call", type=o.CALL, required=False)
@click.option("--reply", is_flag=True, help="Print the reply of CALL instead of its prompt.")
@o.json_option
def prompts(session: str, call: str | None, reply: bool, as_json: bool) -> None:
    """List the calls to models of SESSION, one line each. With CALL, print its prompt.

    Prompts of the proposer `paste` await your reply: copy one into any chat window, then `espalier model answer SESSION CALL
    FILE`.
    """
    folder = store.resolve(session)
    state = read_state(folder)
    if call is None:
        calls = list(state.calls.values())
        if as_json:
            show_json({"calls": calls})
        else:
            show(table([_call_row(state, one) for one in calls]) or ["no model has been called yet"])
        return
    known = state.calls.get(call)
    if known is None:
        hint = f"`espalier model prompts {shell_name(folder)}` lists the calls"
        raise CommandExit(BAD_INPUT, f"unknown call {call[:100]!r} in {folder.name}: {hint}")
    if reply and not known.reply:
        raise CommandExit(BAD_INPUT, f"{call} has no reply: it is {known.status.value}")
    text = Blobs(folder).text(known.reply if reply else known.prompt)
    if as_json:
        show_json({"call": known, "reply" if reply else "prompt": text})
    else:
        show_text(f"{text}\n")


def _call_row(state: SessionState, call: ModelCall) -> list[Span]:
    tone = {CallStatus.OPEN: Tone.WARN, CallStatus.FAILED: Tone.BAD}.get(call.status, Tone.PLAIN)
    awaited = call.status is CallStatus.OPEN and call.by_hand
    about = "estimated: " if call.estimated else ""
    before = refused_before(state, call)
    tokens = f"{about}{call.usage.input:,} in, {call.usage.output:,} out" if call.usage.total else ""
    return [
        Span(call.id, Tone.STRONG),
        Span(f"round {queries.round_of_call(state, call)}", Tone.FAINT),
        Span(f"{call.role.value}{f', retry of {before.id}' if before is not None else ''}"),
        Span(call.model),
        Span("awaits your reply" if awaited else call.status.value, tone),
        Span(tokens, Tone.FAINT),
        Span(one_line(call.reason), Tone.FAINT),
    ]


@click.command()
@steers
@call_argument
@click.argument("file", type=o.InputPath(dir_okay=False, path_type=Path, allow_dash=True), default="-")
@click.option("--as-it-is", is_flag=True, help="Accept a reply that does not answer the prompt.")
def answer(target: Target, call: str, file: Path, as_it_is: bool) -> None:
    """Give the reply to a prompt of the proposer `paste`, from FILE or from standard input. `open` or `step` then uses it.

    A reply without ideas or without a complete kernel is refused, with the reason.
    """
    text = _read_reply(file)
    place = "standard input" if str(file) == "-" else str(file)
    if not text.strip():
        raise CommandExit(BAD_INPUT, f"the reply in {place} is empty")
    state = read_state(target.folder)
    known = state.calls.get(call)
    awaits = known is not None and known.by_hand and known.status is CallStatus.OPEN
    if known is not None and awaits and not as_it_is and (wrong := unusable_reply(state, known, text)):
        raise CommandExit(BAD_INPUT, f"the reply in {place} does not answer {call}: {wrong}; --as-it-is accepts it anyway")
    target.submit_all(lambda writer: [c.AnswerCall(call, writer.store_blob(text.encode("utf-8", "replace")))])
    target.advise(f"espalier open {target.name}")


@click.command()
@steers
@call_argument
@reason_option
def cancel(target: Target, call: str, reason: str) -> None:
    """Cancel one open CALL of SESSION (`espalier model prompts` lists them).

    An idea then gets only the code written so far, a kernel under repair fails, and a round waits for an idea of yours. The
    call is not repeated by itself.
    """
    target.submit(c.CancelCall(call, reason))
    target.advise(f"espalier open {target.name}")


def _read_reply(file: Path) -> str:
    try:
        with click.open_file(str(file), "rb") as stream:
            data = stream.read(_LARGEST_REPLY + 1)
    except OSError as error:
        raise CommandExit(BAD_INPUT, f"{file} cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST_REPLY:
        raise CommandExit(BAD_INPUT, f"{file} is larger than {_LARGEST_REPLY >> 20} MiB: too large for a reply")
    reply: str = data.decode("utf-8", "replace")
    return reply


@click.command("set")
@steers
@click.option(
    "--proposer", "source", type=o.NAME, metavar="NAME[=SHARE],...", help="Who proposes the ideas of the next rounds."
)
@click.option("--writer", metavar="NAME", help="Who writes the code; an empty NAME means the author of the idea.")
@model_options
def set_models(target: Target, **given: Any) -> None:
    """Change who proposes and writes in SESSION, their servers and options; without options, print them.

    Open calls keep the settings that they began with; later ones use the new settings. `--server NAME=` removes a server,
    `none` an option (`default` an effort).
    """
    if any(value not in (None, ()) for value in given.values()):

        def commands(steering: Steering) -> list[c.Command]:
            models = changed(steering.state.models, given)
            check_models(models)
            check_programs(models)
            return [c.SetModels(models)]

        after = target.submit_all(commands)
        target.show(_model_lines(after.models))
        target.advise(f"espalier open {target.name}")
        return
    models = read_state(target.folder).models
    if target.as_json:
        show_json({"session": str(target.folder.absolute()), "models": models})
    else:
        show(_model_lines(models))


def _model_lines(models: ModelSettings) -> list[Line]:
    pairs = [("proposer", models.source), ("writer", models.writer or "the author of the idea")]
    for server in models.servers:
        own = server.url or "its own server"
        pairs.append(
            ("server", f"{server.proposer} at {own}, {f'key from {server.key}' if server.key else 'its own key or none'}")
        )
    for role, options in models.options.items():
        pairs += [(f"{role} {name}", str(value)) for name, value in asdict(options).items() if value not in (None, "")]
    pairs += [("patience", duration_text(models.patience)), ("concurrency", str(models.concurrency))]
    pairs += [("profiling", YES if models.profiling else NO)]
    return fields((label.replace("_", " "), Span(one_line(value))) for label, value in pairs)


@click.command("usage")
@session_argument
@o.json_option
def usage(session: str, as_json: bool) -> None:
    """Print the tokens and dollars of SESSION: in total, by round, by role and by model, as the providers counted them.

    `estimated` are calls whose cost nobody counted (no usage reported, a stream cut off, a process that ended, `command:`):
    they count as all that they could have cost.
    """
    state = read_state(store.resolve(session))
    rows = list(_usage_rows(state))
    if as_json:
        keys = ("calls", "usage", "usd", "unpriced", "estimated")
        fields = [{"by": by, "name": name, **{key: getattr(row, key) for key in keys}} for by, name, row in rows]
        show_json({"usage": fields})
    elif not state.calls:
        show(["no model has been called yet"])
    else:
        show(_usage_table(rows))


def _usage_rows(state: SessionState) -> Iterator[tuple[str, str, CallTotals]]:
    """The whole session, then by round, by role and by model: (what, name, totals)."""
    calls = state.calls.values()
    yield ("total", "", facts.totals(calls))
    yield from (("round", name.removeprefix("round "), row) for name, row in facts.by_round(state).items())
    yield from (("role", *item) for item in sorted(facts.grouped(calls, lambda call: call.role.value).items()))
    yield from (("model", *item) for item in sorted(facts.grouped(calls, lambda call: call.model).items()))


def _usage_table(rows: Iterable[tuple[str, str, CallTotals]]) -> list[Line]:
    head = ["", "", "calls", "input", "cached", "output", "dollars", ""]
    cells = [[Span(word, Tone.FAINT) for word in head]]
    for by, name, row in rows:
        dollars = f"{row.usd:.4f}" + (f" and {row.unpriced} of unknown price" if row.unpriced else "")
        figures = (f"{row.calls}", f"{row.usage.input:,}", f"{row.usage.cached:,}", f"{row.usage.output:,}", dollars)
        estimated = f"{row.estimated} estimated" if row.estimated else ""
        known = (Span(figure) for figure in figures)
        cells.append([Span(by, Tone.FAINT), Span(name, Tone.STRONG), *known, Span(estimated, Tone.WARN)])
    return table(cells)
