"""`ava completion SHELL`: the script that teaches a shell to complete commands, options, roles and ids."""

from __future__ import annotations

from importlib import resources
from typing import Annotated

import typer

from ava_server.cli.terminal import write
from ava_server.core.errors import BadInput
from ava_server.core.ids import did_you_mean

SHELLS = ("bash", "zsh", "fish")


def register(app: typer.Typer) -> None:
    """Add `ava completion` to the app."""
    app.command("completion", short_help="A script by which bash, zsh or fish completes words of ava.")(
        completion_command
    )


def completion_command(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script by which a shell completes commands, options, roles and ids.

    bash: `eval "$(ava completion bash)"` in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish:
    `ava completion fish | source` in ~/.config/fish/config.fish.
    """
    if shell not in SHELLS:
        raise BadInput(f"no shell {shell[:40]!r}; {did_you_mean(shell, SHELLS)}known: {', '.join(SHELLS)}")
    write(resources.files("ava_server.cli.shells").joinpath(f"ava.{shell}").read_text("utf-8").rstrip("\n"))
