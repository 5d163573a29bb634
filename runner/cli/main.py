"""The ``runner`` command: its subcommands, and how errors become one line and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections import UserDict
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

import runner
from runner.cli import exit_codes
from runner.cli.options import global_options
from runner.cli.terminal import note, refuse
from runner.errors import RunnerError, SpecError

# The modules of ``runner.cli``, and their functions that are commands.
_MODULES = {
    "init": "init",
    "work": "run submit worker",
    "listing": "list_",
    "show": "show events",
    "transcript": "transcript",
    "outputs": "diff patch results workspace",
    "report": "report",
    "costs": "costs budget",
    "control": "cancel pause resume retry say fork priority",
    "approvals": "approvals approve deny",
    "rules": "rules",
    "schedules": "schedule finish_by",
    "audit": "audit",
    "search": "search",
    "exchange": "export import_",
    "web": "web users",
    "system": "db doctor workers prune schema",
}


class _Commands(UserDict[str, Any]):
    """Modules and functions of commands, by the commands' names. Gives the command itself: its module is
    loaded then, so that ``runner list`` does not wait for the modules of all commands."""

    def __getitem__(self, name: str) -> click.Command:
        module, function = super().__getitem__(name)
        command: click.Command = getattr(import_module(f"runner.cli.{module}"), function)
        return command


@click.group(
    commands=_Commands(
        {
            function.rstrip("_").replace("_", "-"): (module, function)
            for module, functions in _MODULES.items()
            for function in functions.split()
        }
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@global_options
@click.version_option(runner.__version__, prog_name="runner", message="%(prog)s %(version)s")
def cli() -> None:
    """Runs batches of Claude agents to their end, durably.

    Everything that a run does is stored before its next step begins, so that nothing is lost when
    a process dies, and everything can be looked at afterwards.

    \b
    Example:
      runner run jobs/quickstart.toml      work a job here, to its end
      runner list                          which jobs there are
      runner transcript RUN                what was said and done
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command, with the arguments of the process by default, and exit with its code."""
    gc.disable()  # until the app is open: see ``open_app``
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character
    try:
        code = _invoke(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has read enough. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = exit_codes.SUCCEEDED
    except (KeyboardInterrupt, click.Abort):
        code = exit_codes.INTERRUPTED
    except SpecError as error:
        for problem in error.problems:
            refuse(f"{error.source}: {problem}")
        code = exit_codes.USAGE
    except RunnerError as error:
        refuse(str(error))
        code = exit_codes.error_code(error)
    sys.exit(code)


def _invoke(arguments: list[str]) -> int:
    """Not click's own ``main``: that would make an exit code of a closed pipe."""
    try:
        with cli.make_context("runner", arguments) as context:
            return int(cli.invoke(context) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        note(error.format_message())
        return exit_codes.USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "runner"
        refuse(f"{error.format_message().rstrip('.')} (see `{command} --help`)")
        return exit_codes.USAGE
    except click.ClickException as error:
        refuse(error.format_message())
        return exit_codes.USAGE
