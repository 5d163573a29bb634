"""The ``runner`` command: its subcommands, and how errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import runner
from runner.cli import control, exit_codes, look, system, work
from runner.cli.display import cell, note
from runner.cli.options import global_options
from runner.errors import RunnerError, SpecError, UnreachableError, UsageError
from runner.settings import Settings


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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


for command in (
    *(work.run, work.submit, work.worker),
    *(look.list_, look.show, look.transcript, look.events),
    *(control.cancel, control.pause, control.resume, control.retry, control.say),
    *(system.db, system.doctor),
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code.

    Args:
        arguments: those of the process by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(arguments, prog_name="runner", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except BrokenPipeError:
        # Whoever reads has read enough. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.SUCCEEDED
    except (KeyboardInterrupt, click.Abort):
        return exit_codes.INTERRUPTED
    except click.ClickException as error:
        return _refuse(error.format_message(), exit_codes.USAGE)
    except SpecError as error:
        for problem in error.problems:
            _refuse(f"{error.source}: {problem}", exit_codes.USAGE)
        return exit_codes.USAGE
    except UsageError as error:
        return _refuse(str(error), exit_codes.USAGE)
    except UnreachableError as error:
        return _refuse(str(error), exit_codes.UNREACHABLE)
    except RunnerError as error:
        return _refuse(str(error), exit_codes.FAILED)


def _refuse(message: str, code: int) -> int:
    line = cell(" ".join(message.split("\n")))
    for secret in Settings.load().secrets():
        line = line.replace(secret, "…")
    note(f"runner: {line}")
    return code
