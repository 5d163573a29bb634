"""``init``: a first job file for the repository in the current folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from runner.app import init as app_init
from runner.app.humanize import cell, plural
from runner.cli.options import load_job, with_settings
from runner.cli.terminal import make_folder, note, say, write_file
from runner.errors import UsageError
from runner.settings import Settings


@click.command()
@click.option(
    "--template",
    type=click.Choice(app_init.TEMPLATES),
    default="refactor",
    show_default=True,
    help="What the job is for.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The job file (default: the template's name with .toml).",
)
@with_settings
def init(settings: Settings, template: app_init.Template, output: Path | None) -> None:
    """Write a first job file for this repository: prompt, items, rules, limits and `verify`.

    `init` finds the language and the test command of the files here. It asks what to do, in which
    files, and which command checks the work; then it writes the job file and validates it. Without
    a terminal it asks nothing and uses what it found.

    \b
    Example:
      runner init
      runner init --template audit -o audits/rights.toml
    """
    file = output or Path(f"{template}.toml")
    if file.exists():
        raise UsageError(f"{file} exists already: name another one with -o FILE, or remove it")
    found = app_init.look_at(Path.cwd())
    task, pattern = app_init.TASKS[template], found.pattern
    verify = app_init.default_verify(found, template)
    what = f"{found.language} code" if found.language else "no known language"
    note(f"{cell(found.root)}: {plural(len(found.files), 'file')}, {what}")
    if sys.stdin.isatty() and sys.stdout.isatty():
        task = click.prompt("What should be done", task)
        matching = 0
        while found.files and not matching:
            pattern = click.prompt("To which files (a pattern)", pattern or "**/*")
            matching = app_init.files_matching(found, str(pattern))
            note(f"{plural(matching, 'file')}, a run each" if matching else "no file matches")
        verify = click.prompt("Which command checks the work", verify or "true")
    text = app_init.render(found, template, task=task, pattern=pattern, verify=verify, file=file)
    make_folder(file.parent)
    write_file(file, text.encode(errors="surrogateescape"))
    say(f"{file} is written")
    submission = load_job(settings, file, before="submission")
    say(
        f"{plural(len(submission.runs), 'run')}; next: runner run {shlex.quote(str(file))} --dry-run"
    )
