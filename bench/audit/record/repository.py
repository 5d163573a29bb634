"""The repositories that the made-up agents work on: files of code, and what tools print about them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bench.audit.record.vocabulary import Vocabulary, camel, snake

_SUFFIXES = (".py", ".py", ".py", ".ts", ".go", ".sql", ".md", ".yaml")
FILES = 260
_NAMES_OF_A_FILE = 25
_CLASSES_OF_A_FILE = 8

_COMMENT = "# {words}"
_SHAPES = (
    (0.12, ""),
    (0.25, _COMMENT),
    (0.35, "def {name}(self, {other}: {kind}) -> {of}:"),
    (0.45, "if {name}.{other} is None or {third}[0] > {number}:"),
    (0.55, 'raise {kind}(f"{words}: {{{name}}}")'),
    (0.75, "{name} = {kind}.{other}({third}, limit={number})"),
    (0.90, "return {name}({other}, key=lambda each: each.{third})"),
    (1.00, 'log.info("{words}", extra={{"{name}": {other}}})'),
)


@dataclass
class File:
    """``numbered`` are its lines as the tool Read shows them; ``found`` as Grep does."""

    path: str
    lines: list[str]
    numbered: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)


class Repository:
    """Files of which each uses some of the repository's names; other repositories have others."""

    def __init__(self, name: str, vocabulary: Vocabulary, chance: random.Random) -> None:
        self.name = name
        self._vocabulary = vocabulary
        self.names = [snake(vocabulary.stems(chance, chance.randint(2, 4))) for _ in range(900)]
        self.classes = [camel(vocabulary.stems(chance, chance.randint(2, 4))) for _ in range(260)]
        self.files = [self._file(chance) for _ in range(FILES)]
        self.sentences = [vocabulary.sentence(chance) for _ in range(4_000)]
        self.logs = [self._log_line(chance) for _ in range(1_500)]
        self.tests = [
            f"tests/test_{snake(vocabulary.stems(chance, 2))}.py::test_{snake(vocabulary.stems(chance, 4))}"
            for _ in range(800)
        ]

    def _file(self, chance: random.Random) -> File:
        folders = "/".join(self._vocabulary.stems(chance, chance.randint(1, 3)))
        path = f"src/{folders}/{snake(self._vocabulary.stems(chance, 2))}{chance.choice(_SUFFIXES)}"
        names = chance.sample(self.names, k=_NAMES_OF_A_FILE)
        classes = chance.sample(self.classes, k=_CLASSES_OF_A_FILE)
        lines = [self._line(chance, names, classes) for _ in range(chance.randint(20, 200))]
        file = File(path, lines)
        file.numbered = [f"{number:>6}\t{line}" for number, line in enumerate(lines, 1)]
        file.found = [f"{path}:{number}:{line}" for number, line in enumerate(lines, 1)]
        return file

    def _line(self, chance: random.Random, names: list[str], classes: list[str]) -> str:
        indent = " " * (4 * chance.choice((0, 1, 1, 2, 2, 3)))
        luck = chance.random()
        shape = next(shape for most, shape in _SHAPES if luck <= most)
        if "{words}" not in shape:
            words = ""
        elif shape == _COMMENT:
            words = self._vocabulary.sentence(chance)
        else:
            words = " ".join(self._vocabulary.draw(chance, 5))
        line = shape.format(
            name=chance.choice(names),
            other=chance.choice(names),
            third=chance.choice(names),
            kind=chance.choice(classes),
            of=chance.choice(classes),
            number=chance.randint(0, 5_000),
            words=words,
        )
        return indent + line if line else line

    def _log_line(self, chance: random.Random) -> str:
        level = chance.choice(("INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR"))
        text = " ".join(self._vocabulary.draw(chance, chance.randint(4, 14)))
        return (
            f"{level} {self.name}.{chance.choice(self.names)} {text} {chance.choice(self.names)}="
        )
