"""The environment that tools run in: the worker's, without Runner's settings, without secrets, and
without what would change what a command means."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runner.settings import Secrets, looks_secret

# What bash and sh would run, define or change by them before a command, or around it: rules take the
# name of a program for the program (https://www.gnu.org/software/bash/manual/html_node/Bash-Variables.html).
_STEERING_NAMES = re.compile(
    r"^(BASH_FUNC_.*|BASH_ENV|ENV|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|PS4|CDPATH|GLOBIGNORE)$",
    re.DOTALL,
)


def tool_environment(environ: Mapping[str, str], secrets: Secrets | None = None) -> dict[str, str]:
    """Return the variables that a tool may see: their names do not look like a setting of Runner's or a
    secret, and steer no shell, and their values contain no secret."""
    return {
        name: value
        for name, value in environ.items()
        if not looks_secret(name)
        and not _STEERING_NAMES.search(name)
        and not (secrets and secrets.are_in(value))
    }
