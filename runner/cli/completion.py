"""``completion``: shell completion of commands, options, and names of jobs and runs."""

from __future__ import annotations

import os
from pathlib import PurePath

import click
from click.shell_completion import get_completion_class

from runner.cli.options import global_options
from runner.cli.terminal import say_bytes
from runner.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@global_options
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print the completion for a shell: for the one in SHELL if none is given.

    It completes commands, options, states, names of jobs, and items as JOB/ITEM, from the database that
    the command would use.

    \b
    Example:
      eval "$(runner completion bash)"                  in ~/.bashrc
      runner completion fish > ~/.config/fish/completions/runner.fish
    """
    name = shell or PurePath(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in SHELLS else None
    if found is None:
        raise UsageError(f"no completion for the shell {name[:40]!a}: name bash, zsh or fish")
    root = context.find_root()
    say_bytes(found(root.command, {}, "runner", "_RUNNER_COMPLETE").source().encode())
