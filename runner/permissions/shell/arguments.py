"""Commands in the arguments of a program: after a wrapper (``timeout 5 ls``) or a runner (``npx
jest``), in an option or in a script."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile, pairwise, takewhile

from runner.permissions.shell import programs
from runner.permissions.shell.harmless import is_cmake_definition, is_make_assignment, is_plain_sed
from runner.permissions.shell.programs import RISKY, RUNNERS, WRAPPERS, Options
from runner.permissions.shell.spellings import git_parts, is_option, starts
from runner.permissions.shell.words import Assignment, Word, names

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
_REST = Word("…", "…", exact=False, loose=True)  # stands for the arguments that xargs adds
# A folder that find starts from, so that nothing that it finds looks like anything but a path.
_START = re.compile(r"(?:\.{0,2}|[A-Za-z0-9_][A-Za-z0-9_.-]*)(?:/.*)?", re.DOTALL)
_FIRST_SAYS = names(
    "tar bsdtar gtar go npm npx cargo openssl sqlite3 jq cmake hg svn apt apt-get pip rpm dpkg"
)
MOST_READINGS = 64  # of one command
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*|py")
_MODULE = re.compile(r"-[bBdEhiIOPqRsSuvVx]*m(.*)", re.DOTALL)
_ABSOLUTE = re.compile(r"(?!.*/\.\.(?:/|$))/.*", re.DOTALL)
_OUTSIDE = re.compile(r"/|~|\$|(?:.*/)?\.\.(?:/|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Wrapped:
    words: tuple[Word, ...] = ()  # the command; empty when it runs none
    assigned: tuple[Assignment, ...] = ()  # the variables that it sets for the command
    hides: str = ""  # why the command is not known for sure


def unwrap(name: str, arguments: Sequence[Word]) -> Wrapped:
    """Return the command of the wrapper ``name``, one of ``programs.WRAPPERS``."""
    wrapper = WRAPPERS[name]
    not_literal = f"the arguments of {name} are not literal"
    at, replaced, hides = 0, None, ""
    while at < len(arguments):
        word = arguments[at]
        following = arguments[at + 1] if at + 1 < len(arguments) else None
        if not word.exact:
            return Wrapped(hides=not_literal)
        if word.value == "--":
            at += 1
            break
        if not word.value.startswith("-") or (word.value == "-" and name != "env"):
            break
        taken = _words_taken(wrapper, word.value)
        if taken is None:
            return Wrapped(hides=f"{name} has an option that is not known")
        if word.value.startswith("-I"):
            replaced = word.value[2:] or (following.value if following else "")
        if taken == 2 and following and not following.exact:
            hides = not_literal
        at += taken
    assigned = []
    while "ASSIGNS" in wrapper and at < len(arguments):
        word = arguments[at]
        assignment = _ASSIGNMENT.match(word.value)
        if assignment is None or word.loose:
            break
        value = Word(assignment[2], assignment[2], word.exact)
        assigned.append(Assignment(assignment[1], word.source, value))
        at += 1
    begin = at + ("OPERAND" in wrapper)
    if not all(operand.exact for operand in arguments[at:begin]):
        hides = not_literal
    words = tuple(arguments[begin:])
    if name == "xargs":
        words = _fed(words or (Word("echo", "echo"),), replaced)
    return Wrapped(words, tuple(assigned), hides)


def program_of(words: Sequence[Word]) -> str:
    """Return the program that a command runs behind its wrappers; "" if that is not known."""
    while words and words[0].exact:
        name = words[0].value.rpartition("/")[2]
        if name not in WRAPPERS or len(words) == 1:
            return words[0].value
        words = unwrap(name, words[1:]).words
    return ""


def _words_taken(wrapper: Mapping[str, bool], option: str) -> int | None:
    """Return how many words an option takes, None if it is not known."""
    if option in wrapper:
        return 2 if wrapper[option] else 1
    if option.startswith("--"):
        name, equals, _ = option.partition("=")
        return 1 if equals and wrapper.get(name) else None
    number = "NUMBERS" in wrapper and re.fullmatch(r"-\d+", option)
    flags = all(wrapper.get(f"-{letter}") is False for letter in option[1:])
    return 1 if number or flags or wrapper.get(option[:2]) else None


def _fed(words: tuple[Word, ...], replaced: str | None) -> tuple[Word, ...]:
    """Return the command of xargs with the arguments that it adds, at the end or for ``replaced``."""
    if replaced is None:
        return (*words, _REST)
    if not replaced:
        return (_REST,)
    return tuple(
        word._replace(
            source=f"{word.source}…", exact=False, loose=word.value.lstrip("-").startswith(replaced)
        )
        if replaced in word.value
        else word
        for word in words
    )


def inner_commands(program: str, arguments: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Return every reading of the command that a runner runs; none when it runs none here."""
    python = _PYTHON.fullmatch(program)
    if program not in RUNNERS and not python:
        return []
    values = [word.value for word in arguments]
    found: dict[int, None] = {}
    modules = [at for at, value in enumerate(values) if python and _MODULE.match(value)]
    if modules:
        at = modules[0] + 1
        joined = values[at - 1].partition("m")[2]
        if joined:
            arguments = [*arguments[:at], Word(joined, joined), *arguments[at:]]
            values.insert(at, joined)
        if values[at : at + 1] and (values[at] in RISKY or values[at] in programs.PYTHON_MODULES):
            found[at] = None
    for way in RUNNERS.get(program, ()):
        between = 1 if way[-1:] == ["?"] else 0
        introduction = way[: len(way) - between]
        own = way[-1:] and way[-1].startswith("&")  # the word belongs to the command
        introduction = [way[-1][1:]] if own else introduction
        for at in starts(values) if introduction else [0]:
            begin = at + len(introduction)
            if values[at:begin] == introduction:
                begin -= bool(own)
                rest = values[begin:]
                for start in starts(rest):
                    found.update(dict.fromkeys(range(begin + start, begin + start + between + 1)))
                if "--" in rest:
                    found[begin + rest.index("--") + 1] = None
    commands = []
    for at in found:
        while at < len(arguments) and _ASSIGNMENT.match(values[at]):
            at += 1
        if at < len(arguments) and not is_option(values[at]):
            # ``npm@9 publish`` is ``npm publish``.
            name, sign, version = values[at].partition("@")
            bare = arguments[at].exact and name and sign and version and "/" not in name
            first = Word(name, name) if bare else arguments[at]
            commands.append((first, *arguments[at + 1 :]))
    if program in programs.CONTAINERS:
        for at in starts(values):
            if values[at] in ("compose", "container"):
                commands += inner_commands("docker-compose", arguments[at + 1 :])
    return commands + _entries(program, arguments)


def _entries(program: str, arguments: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Return readings of the command whose name is in an option and its arguments behind an image; some
    more than ``MOST_READINGS`` are enough."""
    commands: list[tuple[Word, ...]] = []
    if program not in programs.CONTAINERS | {"docker-compose"}:
        return commands
    for at, word in enumerate(arguments):
        named, equals, joined = word.value.partition("=")
        first, *rest = [word._replace(source=joined, value=joined), *arguments[at + 1 :]]
        if len(commands) > MOST_READINGS:
            break
        if named == "--entrypoint" and (equals or rest):
            first, *rest = [first, *rest] if equals else rest
            images = starts([each.value for each in rest])
            commands += [(first, *rest[image + 1 :]) for image in images]
    return commands


@dataclass(frozen=True, slots=True)
class Executing:
    """The arguments of find with ``-exec``."""

    own: list[Word]  # without ``-exec … ;`` and ``-exec … {} +``
    commands: list[list[Word]]  # these
    starts: list[Word]  # the folders that it looks in

    @property
    def stays(self) -> bool:
        """True if it finds nothing but paths below where it starts, and goes through no link."""
        plain = all(_START.fullmatch(word.value) for word in self.starts)
        return plain and not any(word.value in ("-L", "-follow") for word in self.own)

    @property
    def names(self) -> list[str]:
        """Globs for the names that it finds, as bash has them; "**" for any."""
        values = [word.value for word in self.own]
        found = [
            value
            for before, test, value in zip(["", *values], values, values[1:], strict=False)
            if test in ("-name", "-iname") and before not in ("!", "-not")
        ]
        ways = sum(value in ("-o", "-or", ",") for value in values) + 1
        if len(found) < ways:
            return ["**"]
        # ``*`` stands for what starts with a dot too.
        return [each for name in found for each in (name, name.lstrip("*"), f".{name}") if each]


def excluded_by_find(arguments: Sequence[Word]) -> set[int]:
    """Return the ``id()`` of each word that is a path pattern which find excludes."""
    return {
        id(arguments[at])
        for at in range(2, len(arguments))
        if arguments[at - 1].value in ("-path", "-wholename", "-ipath")
        and arguments[at - 2].value in ("-not", "!")
    }


def executed_by_find(arguments: Sequence[Word]) -> Executing | None:
    """Return find's own arguments and the commands that it runs; None if they are not understood. ``{}``
    in a command becomes a path below find's start, so it is no option."""
    places = dropwhile(lambda word: re.fullmatch(r"-[HLP]|-O[0-9]", word.value), arguments)
    starts = list(takewhile(lambda word: word.value[:1] not in ("-", "(", "!"), places))
    found = Executing([], [], starts or [Word(".", ".")])
    plain = all(_START.fullmatch(word.value) for word in starts)
    command: list[Word] | None = None
    for word in arguments:
        if not word.exact or word.value.startswith(("-files0", "-D")):
            return None
        if command is None and word.value == "-exec":
            found.commands.append(command := [])
        elif command is None:
            found.own.append(word)
        elif word.value == ";" or (word.value == "+" and command and command[-1].value == "{}"):
            command = None
        else:
            named = "{}" in word.value
            command.append(word._replace(exact=False, loose=not plain) if named else word)
    return found if command is None and all(found.commands) else None


def arguments_hide(name: str, arguments: Sequence[Word]) -> str:
    """Return why the arguments of a program decide what is run or written, "" if they do not."""
    if reason := _project_elsewhere(name, arguments) or _reads_commands(name, arguments):
        return reason
    values = [word.value for word in arguments]
    if name not in programs.ELSEWHERE and (
        told := [v for v in values if v[:2] == "--" and programs.RUNS_VALUE.fullmatch(v)]
    ):
        return f"{name} runs what {told[0]} says"
    if name in programs.USES and programs.USES[name].search(" ".join(values)):
        return f"{name} runs or writes what its arguments say"
    match name:
        case "sed" | "gsed":
            return _sed(arguments)
        case "awk" | "gawk" | "mawk" | "nawk":
            return _awk(arguments)
        case "git":
            return _git(arguments)
        case "npm":
            for at in starts(values):
                rest = values[at + 1 :] if values[at] in programs.NPM_RUNS else []
                if any(rest[start] == "env" for start in starts(rest)):
                    return "npm run env runs any command"
        case "make" | "gmake":
            if values[:1] == ["-f"] and values[1:2] in (
                ["Makefile"],
                ["makefile"],
                ["GNUmakefile"],
            ):
                arguments = arguments[2:]  # the file that it reads anyway
            for word in arguments:
                assigns = "=" in word.value and not word.value.startswith("-")
                if assigns and not (word.exact and is_make_assignment(word.value)):
                    return f"make runs or writes what {word.value} says"
        case "cmake":
            for before, word in pairwise([Word("", ""), *arguments]):
                text = word.value if before.value == "-D" else word.value.partition("-D")[2]
                if text and not (word.exact and is_cmake_definition(text)):
                    return f"cmake runs what {text} says"
        case "npx":  # only the options before the command are its own
            own = list(arguments)
            while own and own[0].value in programs.NPX_FLAGS:
                own.pop(0)
            found = starts([word.value for word in own])
            arguments = own[: found[-1]] if found else own
        case "go" if values[:1] == ["env"] and any(re.match("--?[wu]", v) for v in values):
            return "go env -w sets the programs that go runs"
    risky = RISKY.get(name) or (RISKY["gcc"] if programs.compiles(name) else None)
    return _risky(name, arguments, risky) if risky is not None else ""


def _risky(name: str, arguments: Sequence[Word], risky: Options) -> str:
    ended = False
    for index, word in enumerate(arguments):
        value = word.value
        if risky.pattern is not None and risky.pattern.search(value):
            return f"{name} runs or writes what {value} says"
        if ended:
            continue
        option = name == "find" and value.startswith("-") and not word.exact
        # The first word may be letters of options, or say what the others mean.
        says = index == 0 and value[:1] in ("$", "{") and not word.exact and name in _FIRST_SAYS
        if option or says or (word.loose and not risky.any_value):
            return f"{name} gets arguments that are not literal"
        if value.startswith(risky.starts):
            return f"{name} runs or writes what {value} says"
        if index == 0 and risky.bundle and not value.startswith("-"):
            value = f"-{value}"
        if _is_one_of(value, risky.letters, risky.long):
            return f"{name} runs or writes what {value.partition('=')[0]} says"
        ended = value == "--" and not risky.all_options
    return ""


def _is_one_of(value: str, letters: str, long: Collection[str]) -> bool:
    """True if the word is one of the options, shortened or in a bundle."""
    if value.startswith("--"):
        named = value[2:].partition("=")[0]
        return bool(named) and any(option.startswith(named) for option in long)
    return value.startswith("-") and any(letter in letters for letter in value[1:])


def _project_elsewhere(name: str, arguments: Sequence[Word]) -> str:
    """Return why the scripts of a project outside of the folder are run, "" if they are not."""
    options = programs.PROJECT_OPTIONS.get(name)
    if options is None:
        return ""
    for at, word in enumerate(arguments):
        if word.value == "--":
            break
        following = arguments[at + 1].value if at + 1 < len(arguments) else ""
        for joined in _joined_values(word.value, options):
            given = joined or following
            if _OUTSIDE.match(given) or "{}" in given:
                return f"{name} runs what is in {given}"
    return ""


def _joined_values(word: str, options: Collection[str]) -> list[str]:
    """Return the values that a word joins to options, by each reading of a bundle of letters; "" for one
    that is in the next word."""
    if word.startswith("--"):
        named, _, given = word.partition("=")
        known = len(named) > 3 and any(option.startswith(named) for option in options)
        return [given] if known else []
    letters = re.match(r"-(?!D)[A-Za-z0-9]*", word)
    return [
        word[at + 1 :].removeprefix("=")
        for at in range(1, letters.end() if letters else 0)
        if f"-{word[at]}" in options
    ]


def input_as_arguments(name: str, arguments: Sequence[Word], text: str) -> Sequence[Word]:
    """Return arguments with which a database client would run the commands that it reads from its input:
    one for the whole text, and one for each of its commands that begins with a backslash."""
    if not _reads_commands(name, arguments):
        return ()
    option = programs.COMMAND_READERS[name].given_by
    texts = [text, *(f"\\{rest}" for rest in text.split("\\")[1:])]
    return [Word(each, each) for each in chain.from_iterable((option, t) for t in texts) if each]


def _reads_commands(name: str, arguments: Sequence[Word]) -> str:
    reader = programs.COMMAND_READERS.get(name)
    if reader is None:
        return ""
    values = [word.value for word in arguments]
    operands = [
        value
        for before, value in zip(["", *values], values, strict=False)
        if not value.startswith("-") and before not in reader.valued
    ]
    if len(operands) >= reader.operands or any(map(reader.option.fullmatch, values)):
        return ""
    return f"{name} runs commands of its input"


def _sed(arguments: Sequence[Word]) -> str:
    scripts: list[Word] = []
    operands: list[Word] = []
    words = iter(arguments)
    for word in words:
        value = word.value
        numeric = word.sample and not word.sample.startswith("-")
        if (word.loose and not numeric) or (
            value.startswith("-") and not word.exact and "=" not in value
        ):
            return "sed gets arguments that are not literal"
        if named := re.fullmatch(r"-[nErsuz]*e|--expression", value):
            scripts += [script for script in (next(words, None),) if script is not None]
        elif named := re.match(r"-[nErsuz]*e|--expression=", value):
            scripts.append(word._replace(value=value[named.end() :]))
        elif re.match(r"(?:-[nErsuz]*i|--i[a-z-]*=).*/", value, re.DOTALL):
            return "sed keeps copies where its option says"
        elif value.startswith("-i") or re.fullmatch(r"-[nErsuz]+i?|--[a-z-]+(?:=.*)?", value):
            if _is_one_of(value, "f", ("file", "expression")):
                return "sed takes its script from a file"
        elif value.startswith("-"):
            return "sed has an option that is not known"
        else:
            operands.append(word)
    known = (script for script in scripts or operands[:1] if script.exact or script.sample)
    texts = [script.value if script.exact else script.sample for script in known]
    if len(texts) < len(scripts or operands[:1]) or not all(map(is_plain_sed, texts)):
        return "sed can run commands and write files by its script"
    return ""


def _awk(arguments: Sequence[Word]) -> str:
    words = iter(arguments)
    for word in words:
        value = word.value
        if word.loose:
            break
        if re.match(r"-[Fv]", value):
            if len(value) == 2:
                next(words, None)
        elif value.startswith("-"):
            return "awk has an option that is not known"
        elif not word.exact or programs.AWK_RISKY.search(programs.awk_code(value)):
            break
        else:
            return ""
    return "awk can run commands and write files by its program"


def _is_inside(folder: Word) -> bool:
    """True for a literal folder in the one that the command runs in."""
    return folder.exact and not _OUTSIDE.match(folder.value) and not folder.value.startswith("-")


def absolute_folders(arguments: Sequence[Word]) -> tuple[str, ...]:
    """Return the absolute folders that git is told to run in by ``-C``."""
    return tuple(
        value[0].value
        for option, *value in git_parts(arguments)[0]
        if option.value == "-C" and value and value[0].exact and _ABSOLUTE.fullmatch(value[0].value)
    )


def _reads_config(values: Sequence[str]) -> bool:
    """True if the arguments of ``git config`` only read: a name and no value, or an option says so."""
    if any(v.startswith(("--unset", "--add", "--replace", "-e", "--e")) for v in values):
        return False
    others = [value for value in values if not programs.GIT_CONFIG_HARMLESS.fullmatch(value)]
    first = others[0] if others else ""
    named = len(others) == 1 and re.fullmatch(r"[A-Za-z][\w.*/:@-]*\.[\w-]+", first)
    return bool(first in programs.GIT_CONFIG_READS or named)


def _git(arguments: Sequence[Word]) -> str:
    options, following = git_parts(arguments)
    for option, *value in options:
        inside = (
            option.value == "-C"
            and value
            and (_is_inside(value[0]) or value[0].value in absolute_folders(arguments))
        )
        sets = option.value == "-c" and value and value[0].exact
        harmless = sets and programs.GIT_SETTINGS.fullmatch(value[0].value)
        if not (inside or harmless or option.value in programs.GIT_GLOBAL):
            return f"git reads other configuration by {option.value}"
    if not following:
        return ""
    if not following[0].exact:
        return "the subcommand of git is not literal"
    name, rest = following[0].value, following[1:]
    values, literal = [word.value for word in rest], all(word.exact for word in rest)
    first = rest[0].value if rest and rest[0].exact else ""
    any_command = name in programs.GIT_RUNS or programs.GIT_INTERNAL.fullmatch(name)
    bisects = name == "bisect" and ("run" in values or first in ("", "visualize", "view"))
    if any_command or bisects or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        return f"git {name} can run any command"
    if name == "submodule" and ("foreach" in values or not literal):
        return "git submodule foreach runs any command"
    if name == "config" and not (literal and _reads_config(values)):
        return "git config can make git run any command"
    own: list[Word] = []  # without the texts of messages
    message = False
    for word in rest:
        if message and not (word.loose and not word.source.startswith('"')):
            message = False
            continue
        own.append(word)
        message = (
            name in ("commit", "tag", "merge")
            and re.fullmatch(r"-[a-z]*[mF]|--message|--file", word.value) is not None
        )
    return _risky(f"git {name}", own, programs.git_options(name))
