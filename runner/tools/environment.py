"""The environment that tools run in: the worker's, without Runner's settings, without secrets, and
without what would change what a command means."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runner.settings import Secrets

# The socket of the agent is no secret, and git over SSH needs it, as it needs GIT_ASKPASS.
_HARMLESS_NAMES = frozenset(("PWD", "OLDPWD", "SSH_AUTH_SOCK"))
_WITHHELD_NAMES = re.compile(
    r"^(RUNNER_|ANTHROPIC_|PG)"
    r"|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PASSFILE|CREDENTIAL|CREDS|COOKIE|BEARER|JWT"
    r"|(?<!ASK)(?<!BY)(?<!COM)PASS(?![A-Z])|PWD|AUTH(?!OR)|AUTHORIZ"  # not GIT_AUTHOR_NAME, XAUTHORITY
    r"|DATABASE_URL|REDIS_URL|BROKER_URL|AMQP_URL|MONGO(DB)?_UR[IL]|CONNECTION_?STRING|DSN"
    r"|^OTEL_EXPORTER_",  # headers and addresses may hold a password
    re.IGNORECASE,
)
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
        if (name in _HARMLESS_NAMES or not _WITHHELD_NAMES.search(name))
        and not _STEERING_NAMES.search(name)
        and not (secrets and secrets.are_in(value))
    }
