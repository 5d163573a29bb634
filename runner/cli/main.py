"""The ``runner`` command: its subcommands, and how errors become one line and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections import UserDict
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

import runner
from runner.cli import exit_codes
from runner.cli.options import global_options
from runner.cli.terminal import drop_stdout, lasting, note, refuse, refuse_file
from runner.errors import RunnerError, SpecError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# The commands by what they are for: each one's function in a module of ``runner.cli``, and its line in
# ``runner --help``, which needs no module of them.
_COMMANDS = {
    "Work": {
        "init": ("init.init", "Write a first job file for this repository"),
        "run": ("work.run", "Submit a job and work on it here"),
        "submit": ("work.submit", "Submit a job; workers do the work"),
        "worker": ("work.worker", "Work on the due runs of all jobs"),
        "pause": ("control.pause", "Pause a job or a run"),
        "resume": ("control.resume", "Resume a paused job or run"),
        "cancel": ("control.cancel", "End a job or a run now"),
        "retry": ("control.retry", "Continue failed, cancelled or stopped runs"),
        "say": ("control.say", "Send a message to a run"),
        "fork": ("control.fork", "Start a new run from a turn of another run"),
        "priority": ("control.priority", "Show or change a job's share of the slots"),
        "lane": ("control.lane", "Send a job's model calls one by one or in batches"),
        "schedule": ("schedules.schedule", "Submit a job at the times of a cron expression"),
        "finish-by": ("schedules.finish_by", "Set the time after which a job calls no model"),
    },
    "Watch": {
        "attach": ("attach.attach", "Watch a job live, and answer its questions"),
        "list": ("listing.list_", "List jobs, or the runs of a job"),
        "show": ("show.show", "Show one job, run or tool call"),
        "events": ("show.events", "Show the events of a run or a job; -f follows it"),
        "transcript": ("transcript.transcript", "Show what was said and done in a run"),
        "workers": ("system.workers", "List the workers that are alive"),
        "web": ("web.web", "Show jobs and runs in a browser"),
    },
    "Answer": {
        "notify": ("notices.notify", "Test and list the notices of a job"),
        "approvals": ("approvals.approvals", "List tool calls that wait for approval"),
        "approve": ("approvals.approve", "Approve waiting tool calls"),
        "deny": ("approvals.deny", "Deny waiting tool calls"),
        "rules": ("rules.rules", "Check, list and revoke permission rules"),
    },
    "Results": {
        "report": ("report.report", "Report on a job: what to look at first"),
        "results": ("outputs.results", "Export the results of runs as JSON or CSV"),
        "diff": ("outputs.diff", "Show the files that a run changed"),
        "patch": ("outputs.patch", "Write changes as patches for `git am`"),
        "workspace": ("outputs.workspace", "List or remove the folders that runs work in"),
        "costs": ("costs.costs", "Show what model calls cost"),
        "budget": ("costs.budget", "Show or change what a job may cost"),
    },
    "Record": {
        "search": ("search.search", "Search all that runs said and did"),
        "audit": ("audit.audit", "Query the record of all jobs, also with SQL"),
        "export": ("exchange.export", "Write runs to files for another program"),
        "import": ("exchange.import_", "Import exported runs or Claude Code sessions"),
    },
    "System": {
        "doctor": ("system.doctor", "Check what Runner needs on this host"),
        "db": ("system.db", "Upgrade the database, or check it"),
        "prune": ("system.prune", "Remove jobs that ended long ago"),
        "users": ("web.users", "Manage who may log in to `runner web`"),
        "schema": ("system.schema", "Print the JSON Schema of job files"),
        "completion": ("system.completion", "Print completion for bash, zsh or fish"),
    },
}
_COMPLETE = "_RUNNER_COMPLETE"
_COMPLETION_SECONDS = 5
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class _Commands(UserDict[str, Any]):
    """The functions of commands, by the commands' names. Gives the command itself: its module is loaded
    then, so that ``runner list`` does not wait for the modules of all commands."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, function = super().__getitem__(name).partition(".")
        command: click.Command = getattr(import_module(f"runner.cli.{module}"), function)
        return command


# Words of other programs, and what they mean here.
_MEANT = {
    **dict.fromkeys(("status", "ls", "jobs", "runs", "ps", "get", "top"), "list"),
    **dict.fromkeys(("log", "logs"), "transcript"),
    **dict.fromkeys(("stop", "kill", "abort"), "cancel"),
    **dict.fromkeys(("start", "continue"), "run"),
    **dict.fromkeys(("cost", "usage"), "costs"),
    **dict.fromkeys(("rm", "delete"), "prune"),
    **dict.fromkeys(("check", "validate", "plan"), "run --dry-run"),
    "describe": "show",
    "rerun": "retry",
    "view": "web",
    "watch": "attach",
    "help": "--help",
}


class _Runner(click.Group):
    """The top command. It lists its subcommands without importing their modules."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if (meant := _MEANT.get(args[0])) is not None:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {meant!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for commands in _COMMANDS.values() for name in commands)
        for section, commands in _COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(f"{name:<{width}}", told) for name, (_, told) in commands.items()]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        options = click.Command.shell_complete(self, ctx, incomplete)
        told = {
            name: told for commands in _COMMANDS.values() for name, (_, told) in commands.items()
        }
        found = [(name, help_) for name, help_ in told.items() if name.startswith(incomplete)]
        return [*(CompletionItem(name, help=help_) for name, help_ in found), *options]


@click.group(
    cls=_Runner,
    commands=_Commands(
        {name: where for commands in _COMMANDS.values() for name, (where, _) in commands.items()}
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@global_options
@click.version_option(runner.__version__, prog_name="runner", message="%(prog)s %(version)s")
def cli() -> None:
    """Runs many Claude agents, each to its end, durably.

    A job has one run for each of its items. Runner stores each step of a run before the next step
    begins. Nothing is lost when a process dies, and you can inspect everything afterwards.

    Name a JOB by its name, its key, its id or `last` (the newest). Name a RUN by JOB/ITEM or its
    id. The end of an id, as tables show it, is enough.

    \b
    Example:
      runner run jobs/quickstart.toml      submit a job and work on it here
      runner list last                     list the runs of the newest job
      runner transcript last/slugs         read the conversation of one run
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command, with the arguments of the process by default, and exit with its code."""
    if instruction := os.environ.get(_COMPLETE):
        _complete(instruction)
    gc.disable()  # until the app is open: see ``open_app``
    sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr)
    try:
        code = _invoke(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        drop_stdout()
        code = exit_codes.SUCCEEDED
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        drop_stdout()
        refuse(f"the output cannot be written: {error.strerror}")
        code = exit_codes.FAILED
    except (KeyboardInterrupt, click.Abort):
        code = exit_codes.INTERRUPTED
    except SpecError as error:
        refuse_file(error)
        code = exit_codes.USAGE
    except RunnerError as error:
        refuse(str(error))
        code = exit_codes.error_code(error)
    sys.exit(code)


def _complete(instruction: str) -> NoReturn:
    """Print what a shell can complete, or nothing where that takes too long or fails, and exit."""
    from click.shell_completion import shell_complete

    signal.signal(signal.SIGALRM, lambda *_: os._exit(exit_codes.FAILED))
    signal.alarm(_COMPLETION_SECONDS)
    with suppress(Exception):
        sys.exit(shell_complete(cli, {}, "runner", _COMPLETE, instruction))
    sys.exit(exit_codes.FAILED)


def _invoke(arguments: list[str]) -> int:
    """Run a command as click's ``main`` does, which would turn a closed pipe into an exit code."""
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
