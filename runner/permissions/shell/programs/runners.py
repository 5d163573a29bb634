"""Programs that run another program as their everyday use: ``npx``, ``uv run``, ``bundle exec``.

People write allow rules for what they run (``Bash(uv run pytest *)``), so such a command stays what it
is; deny and ask rules see the command inside too.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.permissions.shell.spelling import is_option, starts
from runner.permissions.shell.words import Word, plain_word

# By program, how the command inside is introduced: "" for right after the options; the number of
# words between, where there may be one, is 1.
_RUNNERS: dict[str, dict[str, int]] = {
    "npx": {"": 0},
    "bunx": {"": 0},
    "pnpx": {"": 0},
    "uvx": {"": 0},
    "pipx": {"run": 0},
    "npm": {"exec": 0, "x": 0},
    "pnpm": {"exec": 0, "dlx": 0},
    "yarn": {"exec": 0, "dlx": 0, "run": 0},
    "bun": {"x": 0, "run": 0, "exec": 0},
    "uv": {"run": 0, "tool run": 0},
    "poetry": {"run": 0},
    "pipenv": {"run": 0},
    "pdm": {"run": 0},
    "rye": {"run": 0},
    "hatch": {"run": 0},
    "pixi": {"run": 0, "exec": 0},
    "conda": {"run": 0},
    "mamba": {"run": 0},
    "micromamba": {"run": 0},
    "mise": {"exec": 1, "x": 1},
    "rtx": {"exec": 1, "x": 1},
    "asdf": {"exec": 0},
    "pyenv": {"exec": 0},
    "rbenv": {"exec": 0},
    "nodenv": {"exec": 0},
    "goenv": {"exec": 0},
    "jenv": {"exec": 0},
    "rvm": {"exec": 1, "do": 1},
    "nvm": {"exec": 1, "run": 1},
    "fnm": {"exec": 0},
    "volta": {"run": 0},
    "rustup": {"run": 1},
    "direnv": {"exec": 1},
    "bundle": {"exec": 0, "e": 0, "ex": 0, "exe": 0},
    "bundler": {"exec": 0, "e": 0, "ex": 0, "exe": 0},
    "opam": {"exec": 0},
    "stack": {"exec": 0},
    "cabal": {"exec": 0},
    "dune": {"exec": 0},
    "nix": {"run": 1, "shell": 1, "develop": 1},
    "devbox": {"run": 0},
    "dotenv": {"": 0, "run": 0},
    "dotenvx": {"run": 0},
    "op": {"run": 0},
    "doppler": {"run": 0},
    "infisical": {"run": 0},
    "aws-vault": {"exec": 1},
    "chamber": {"exec": 1},
    "coverage": {"run": 0},
    "ddev": {"exec": 0},
    "lerna": {"exec": 0},
}


def inner_commands(program: str, arguments: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Every reading of the command inside, none when the program does not run one here."""
    ways = _RUNNERS.get(program)
    if ways is None:
        return []
    values = [word.value for word in arguments]
    found: dict[int, None] = {}
    for way, between in ways.items():
        introduction = way.split()
        for at in [0] if not introduction else starts(values):
            begin = at + len(introduction)
            if values[at:begin] == introduction:
                rest = values[begin:]
                for start in starts(rest):
                    found.update(dict.fromkeys(range(begin + start, begin + start + between + 1)))
                if "--" in rest:
                    found[begin + rest.index("--") + 1] = None
    return [
        _unversioned(tuple(arguments[at:]))
        for at in found
        if at < len(arguments) and not is_option(values[at])
    ]


def _unversioned(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """``npm@9 publish`` as ``npm publish``."""
    name, at, version = words[0].value.partition("@")
    exact = words[0].exact and name and at and version and "/" not in name
    return (plain_word(name), *words[1:]) if exact else words
