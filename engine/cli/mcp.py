"""``espalier mcp``: the tools of Espalier for coding agents, over the Model Context Protocol."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path

import click

from engine.api.agents import AgentLimits
from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.session_access import AGENT_NAME
from engine.journal import store
from engine.journal.log_file import log_to_file
from engine.session.inbox import agent

TOKEN = "ESPALIER_MCP_TOKEN"
"""Environment variable: the token of ``--http`` instead of a new one."""


@click.command()
@click.option("--http", is_flag=True, help="Serve streamable HTTP on 127.0.0.1 instead of standard input and output.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8414,
    show_default=True,
    metavar="N",
    help="Port of --http; 0: any free one.",
)
@click.option("--verdicts", type=click.IntRange(0), default=40, show_default=True, metavar="N",
              help="Kernels, races and profiles that may be measured for one agent.")  # fmt: skip
@click.option("--mode", type=o.ApprovalMode(), default="ask", show_default=True, metavar="ask|ask:SECONDS|autopilot",
              help="Who approves ideas in sessions that the agent opens.")  # fmt: skip
@click.option("--agent", "name", type=o.NAME, metavar="NAME", help="Name of the agent. Default: as the client calls itself.")
@click.option("--session", type=o.SESSION, metavar="SESSION", help="Serve this session only.")
@click.option(
    "--root", type=o.PATH, metavar="DIR", help="Problems that do not ship must lie here. Default: the working folder."
)
def mcp(
    http: bool, port: int, verdicts: int, mode: str, name: str | None, session: str | None, root: Path | None
) -> None:  # fmt: skip
    """Let a coding agent propose ideas and write kernels, over MCP. You approve its ideas, e.g. with `espalier idea approve`.

    Standard input and output speak the protocol: a coding agent starts this command itself. Needs `pip install espalier[mcp]`.
    """
    if root is not None and not root.is_dir():
        raise CommandExit(BAD_INPUT, f"--root: {root} is not a folder: give the one in which your problems lie")
    if importlib.util.find_spec("mcp") is None:
        raise CommandExit(BAD_INPUT, "the MCP SDK is missing: pip install 'espalier[mcp]'")
    if not http and o.was_typed("port"):
        raise CommandExit(BAD_INPUT, "--port needs --http: without it, standard input and output speak the protocol")
    given = _token() if http else ""
    stated = name or os.environ.get(AGENT_NAME) or None
    if stated is not None:
        agent(stated)
    only = str(store.resolve(session).absolute()) if session is not None else None
    limits = AgentLimits((root or Path.cwd()).absolute(), verdicts, mode, only)
    log_to_file()
    from engine.api.mcp_server import make_server

    server = make_server(limits, stated)
    if not http:
        if sys.stdin.isatty():
            click.echo(
                "espalier mcp speaks MCP on standard input and output: add it to a coding agent's configuration", err=True
            )
        from engine.api.mcp_stdio import serve_stdio

        asyncio.run(serve_stdio(server))
        return
    from engine.api.mcp_http import HOST, PATH, listen, new_token, serve_http

    try:
        listening = listen(port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise CommandExit(BAD_INPUT, f"port {port} of {HOST} cannot be used ({why}): choose another with --port") from error
    token = given or new_token()
    click.echo(f"url    http://{HOST}:{listening.getsockname()[1]}{PATH}", err=True)
    if not given:
        click.echo(f"token  {token}", err=True)
    asyncio.run(serve_http(server, listening, token))


def _token() -> str:
    """The token that the environment sets; empty for none. Raises CommandExit for one that no client can send."""
    given = os.environ.get(TOKEN, "")
    if all("!" <= sign <= "~" for sign in given):
        return given
    raise CommandExit(BAD_INPUT, f"{TOKEN} is no token that a client can send: use letters and digits, without spaces")
