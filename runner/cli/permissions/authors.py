"""Who answers a question or revokes a rule, for the record."""

from __future__ import annotations

import getpass
import os

import click

from runner.errors import UsageError

author_option = click.option(
    "--as",
    "author",
    metavar="NAME",
    help="Who does it, for the record (default: the user of the operating system).",
)


def author_named(name: str | None) -> str:
    """Who answers: ``name``, or the user of the operating system.

    Raises:
        UsageError: the name is blank or could steer a terminal.
    """
    if name is None:
        try:
            name = getpass.getuser()
        except (
            OSError,
            KeyError,
        ):  # a container's user without a name; KeyError before Python 3.13
            name = f"uid {os.getuid()}"
    if not name.strip() or not name.isprintable():
        raise UsageError(f"{name[:60]!a} is not a name: give one with --as NAME")
    return name.strip()
