"""``espalier completion``: the script that makes a shell complete commands, sessions, problems, kernels and ideas."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from engine.cli import options as o

_USE = {
    "bash": 'eval "$(espalier completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(espalier completion zsh)"    # in ~/.zshrc',
    "fish": "espalier completion fish | source   # in ~/.config/fish/config.fish",
}
EPILOG = "\b\nAdd one line to your shell's start file:\n" + "\n".join(f"  {line}" for line in _USE.values())


@click.command(epilog=EPILOG)
@click.argument("shell", type=o.KnownValue(tuple(_USE)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    click.echo(kind(ctx.find_root().command, {}, "espalier", "_ESPALIER_COMPLETE").source())
