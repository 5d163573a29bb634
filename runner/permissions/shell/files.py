"""Files that the arguments of well-known programs name. ``usages`` has which arguments do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from runner.permissions.shell import programs
from runner.permissions.shell.spellings import git_parts
from runner.permissions.shell.usages import Role, Usage, usage_of
from runner.permissions.shell.words import DEVICES, IS_GLOB, Word, names, path_of, targets_of

_IN_PLACE = re.compile(r"-[nErsuz]*i.*|--i[a-z-]*(?:=.*)?", re.DOTALL)
_SED_SCRIPT = re.compile(r"-[nErsuz]*[ef].*|--(?:e|f)[a-z-]*(?:=.*)?", re.DOTALL)
_URL = re.compile(r"[^/?#]+/(?:[^?#]*/)?([A-Za-z0-9_.+@%-]+)")
_FILE_URL = re.compile(r"(?<![a-z0-9])(?<!\$\{)file:(?://[^/]*(?=/))?([^?#]*)", re.IGNORECASE)
# What a glob may match above the folder that it starts from.
_UPWARDS = re.compile(r"(?:^|/)\.(?:\.|[*?\[][^/]*)(?=/|$)")
_HOME = re.compile(r"^\$(?:HOME|\{HOME\})(?=/|$)")
_LIKE_HOME = re.compile(r"^(?:\$\{HOME[^\w{}][^{}]*\}|~[a-z_][a-z0-9_-]*)(?=/|$)")
_HERE = re.compile(r"^(?:\$(?:(?:OLD)?PWD|\{(?:OLD)?PWD\})|~[+-])(?=/|$)")
_ANSI_QUOTED = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8}))|([0-7]{1,3})|(.))",
    re.DOTALL,
)
_GLOB = re.compile(r"(?:~(?=/))?[A-Za-z0-9_./+@:,=%*?\[\]!^{}-]*")
_BRACES = re.compile(r"\{(?:([^{}]*,[^{}]*)|(\w)\.\.(\w)(?:\.\.-?\d+)?)\}")
_MOST_BRACES = 64
_NAME = re.compile(r"(?:.*/)?([A-Za-z0-9_.+@,-]+)", re.DOTALL)
_EXPANSION = re.compile(r"\$(?:\{\w*\}|\w+|[@*#?!-]|\(:?\))|``")
# Expansions whose text is known: ``${x:-text}``, ``$(echo text)``.
_DEFAULT = re.compile(
    r"\$\{\w+:?[-+=]([^${}]*)\}|\$\((?:echo|printf)\s+([^$()`;|&]*)\)|`(?:echo|printf)\s+([^$()`;|&]*)`"
)
_SPACE = re.compile(r"\$(?:IFS|\{IFS[^{}]*\})(?:\$9)?")
_LEAVES_OUT = re.compile(r":(?:[!^]|\((?:[a-z,]*,)?exclude\))")  # what git's pathspecs begin with
_MAGIC = re.compile(r"^:(?:\([^)]*\)|[/!^]+)")
_PROCESS = re.compile(r"/proc/(?:[^/]+/task/[^/]+|\$\$|\$\w+|\$\{\w+\}|[][0-9*?!^-]+)/")
_SIGNS = re.compile(r"[=,:@#]")
_LONGEST = 2000  # characters of an argument that is taken apart
# Options whose value is not looked at.
LEFT_OUT = re.compile(r"-+(?:exclude|ignore|omit|skip)(?:-(?:dir|glob|pattern))?(?:=|\Z)")
_NO_FILE = DEVICES | {"-"}
# With these options ``docker compose config`` shows only names.
_COMPOSE_NAMES = frozenset(
    ("-q", "--quiet", "--services", "--images", "--volumes", "--profiles", "--hash")
)
# Subcommands that change the working tree. Git refuses a path that leads into .git.
_OF_WORKTREE = names("""
    git-checkout git-restore git-apply git-am git-clean git-stash git-rm git-reset git-switch""")
_UNKNOWN = Word("?", "", exact=False, loose=True)


class Below(NamedTuple):
    """Some path below a folder that a program changes, or reads."""

    folder: str  # "" for the root: any path
    name: str  # a glob for its first name below the folder; "" for any name, "**" for any path
    deep: bool  # it may also be anything below that name
    reads: bool = False
    tracked: bool = False  # only files that git tracks or could track: none of its own


_ANYWHERE = Below("", "**", deep=True)
ANY_READ = Below(".", "**", deep=True, reads=True)  # below the current folder


@dataclass(slots=True)
class Files:
    """Paths as ``path_of`` gives them."""

    reads: list[str] = field(default_factory=list)  # for deny and ask rules: a guess does no harm
    writes: list[str] = field(default_factory=list)  # a rule must allow them; "" if not literal
    changes: list[str] = field(default_factory=list)  # for deny and ask rules, as ``reads``
    below: list[Below] = field(default_factory=list)  # for deny rules: paths that are not literal
    matches: list[Below] = field(default_factory=list)  # ``writes`` that a glob stands for


def files_of(program: str, arguments: Sequence[Word]) -> Files:
    folder = ""
    if program == "git":
        program, folder, arguments = _git(arguments)
    elif program == "aws" and arguments and arguments[0].value == "s3":
        program, arguments = "aws-s3", arguments[1:]
    usage = usage_of(program)
    files, call = Files(), _parse(arguments, usage)
    for role in usage.roles:
        if role.holds(call.given):
            _note(files, role, call)
    _special(program, arguments, call, files)
    for word in arguments:
        files.reads += _in_url(word)
    files.writes = [path for path in files.writes if path not in _NO_FILE]
    if program in _OF_WORKTREE:
        files.below = [each._replace(tracked=True) for each in files.below]
    if not folder:
        return files
    return Files(  # by both readings where a guess does no harm
        [*files.reads, *(joined(folder, path) for path in files.reads if path)],
        [path and joined(folder, path) for path in files.writes],
        [*files.changes, *(joined(folder, path) for path in files.changes)],
        *(
            [each._replace(folder=each.folder and joined(folder, each.folder)) for each in found]
            for found in (files.below, files.matches)
        ),
    )


def operands_of(program: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are neither options nor values of options."""
    words = [Word(value, value) for value in arguments]
    return [word.value for word in _parse(words, usage_of(program)).operands]


def _git(arguments: Sequence[Word]) -> tuple[str, str, Sequence[Word]]:
    """Return a name of git's subcommand, the folder it is in, and its arguments."""
    options, following = git_parts(arguments)
    folder = ""
    for option, *value in options:
        if option.value == "-C" and value:
            folder = joined(folder, path_of(value[0]))
    if not following:
        return "git", folder, ()
    return f"git-{following[0].value}", folder, following[1:]


def joined(folder: str, path: str) -> str:
    """Return where a path leads from a folder; from "" it is the same."""
    absolute = path == "~" or path.startswith(("/", "~/"))
    return path if not folder or absolute else f"{folder}/{path}"


@dataclass(slots=True)
class _Call:
    usage: Usage
    options: list[tuple[str, Word | None]] = field(default_factory=list)  # with their values
    operands: list[Word] = field(default_factory=list)
    pieces: list[Word] = field(default_factory=list)  # what may be a value joined to an option

    @property
    def given(self) -> set[str]:
        """The options, and the first operand."""
        return {name for name, _ in self.options} | {word.value for word in self.operands[:1]}

    def valued(self, options: Iterable[str]) -> list[Word]:
        return [value for name, value in self.options if value is not None and name in options]

    def words(self, role: Role) -> list[Word]:
        found = self.valued(role.items) if self.options else []
        for place in role.places:
            found += self.operands[place]
            found += self.pieces
        for key in role.keys:
            found += [
                _piece(word, word.value[len(key) :])
                for word in self.operands
                if word.value.startswith(key)
            ]
        return found


def _parse(arguments: Sequence[Word], usage: Usage) -> _Call:
    call = _Call(usage)
    words = iter(arguments)
    first = "BUNDLE" in usage.flags
    for word in words:
        value = word.value
        if value == "--":
            call.operands += words
        elif first and not value.startswith("-"):
            for letter in value:
                valued = f"-{letter}" in usage.valued
                call.options.append((f"-{letter}", next(words, _UNKNOWN) if valued else None))
        elif value.startswith("--") or ("SINGLE" in usage.flags and value[:1] == "-" != value):
            call.options.append(_long(word, words, usage))
            if "LOOSE" in usage.flags and "=" in value and not LEFT_OUT.match(value):
                call.pieces.append(_piece(word, value.partition("=")[2]))
        elif value.startswith("-") and value != "-":
            call.options += _letters(word, words, usage)
            if "LOOSE" in usage.flags:
                letters = re.match("-[A-Za-z]{1,4}", value)
                ends = range(2, letters.end() + 1 if letters else 2)
                call.pieces += [_piece(word, value[at:]) for at in ends if at < len(value)]
        else:
            call.operands.append(word)
        first = False
    return call


def _long(word: Word, words: Iterator[Word], usage: Usage) -> tuple[str, Word | None]:
    named, equals, joined = word.value.partition("=")
    if named not in usage.valued and named.startswith("--"):
        named = next((long for long in usage.long if long.startswith(named)), named)
    if equals:
        return named, _piece(word, joined)
    if named in usage.valued:
        return named, next(words, _UNKNOWN)
    if not named.startswith("--"):
        starts = [
            option for option in usage.valued if option[:2] != "--" and named.startswith(option)
        ]
        if starts:
            option = max(starts, key=len)
            return option, _piece(word, word.value[len(option) :])
    return named, None


def _letters(word: Word, words: Iterator[Word], usage: Usage) -> Iterator[tuple[str, Word | None]]:
    for at, letter in enumerate(word.value[1:], 2):
        if f"-{letter}" in usage.valued:
            joined = word.value[at:]
            yield f"-{letter}", _piece(word, joined) if joined else next(words, _UNKNOWN)
            return
        yield f"-{letter}", None


def _piece(word: Word, text: str) -> Word:
    return Word(text, text, word.exact, word.loose)


def _note(files: Files, role: Role, call: _Call) -> None:
    words = call.words(role)
    match role.does:
        case "reads":
            _read(files, words)
            if "REVISIONS" in call.usage.flags:
                _shown(files, words)
        case "gathers":
            for word in words:
                _gather(files, word)
        case "lists" if words or not role.items:
            files.reads += literal(words)
            files.below.append(ANY_READ)
        case "merges":
            files.reads += [path.split()[-1] for path in literal(words) if path.strip()]
        case "finds":
            files.reads += role.items
        case "offered":
            files.reads += [path for word in words for path in _offered(word)]
        case "writes":
            _write(files, words)
        case "within":
            for word in words:
                files.reads += [joined(path_of(word), path) for path in files.reads if path]
        case "may":
            files.changes += [part for path in literal(words) for part in pieces(path)]
            for path in (path for word in words if not word.exact for path in decoded(word)):
                if IS_GLOB.search(path):
                    files.below.append(matching(path))
                else:
                    files.changes.append(path)
        case "changes" | "trees" | "packs":
            for word in words:
                _change(files, word, deep=role.does == "trees")
            if role.does == "packs":
                files.changes += [path.rpartition(".")[0] for path in literal(words)]
            if "PATHSPECS" in call.usage.flags:
                _select(files, words)
        case "copies" | "moves" | "links":
            _copy(files, words, call, role.does)
        case "unpacks":
            for word in words or [Word(".", ".")]:
                _change(files, word, deep=True)


def _read(files: Files, words: Sequence[Word]) -> None:
    files.reads += literal(words)
    for word in words:
        for path in () if word.exact else dict.fromkeys((*_readings(word), *decoded(word))):
            if IS_GLOB.search(path):
                files.below.append(matching(path, reads=True))
            elif path and "$" not in path:
                files.reads.append(path)


def _write(files: Files, words: Iterable[Word]) -> None:
    for paths, globs in map(written, words):
        files.writes += paths
        files.matches += globs


def written(word: Word) -> tuple[list[str], list[Below]]:
    """Return the paths that a command writes which names its target by ``word`` ("": any path), and the
    files in one folder that a glob in ``word`` may match."""
    paths: list[str] = []
    globs: list[Below] = []
    for path in _readings(word):
        found = matching(path) if not word.exact and IS_GLOB.search(path) else None
        if found is None or found.deep or "[" in path:
            paths.append(path if found is None else "")
        else:
            globs.append(found)
    return paths, globs


def _gather(files: Files, word: Word) -> None:
    """Note that everything below a folder is read."""
    files.below += [Below(path, "**", deep=True, reads=True) for path in literal([word])]
    if not word.exact:
        globs = filter(IS_GLOB.search, _readings(word))
        files.below += [matching(glob, deep=True, reads=True) for glob in globs]


def _readings(word: Word) -> list[str]:
    """Return the paths that a word may be, globs as written; "" for one that is not known."""
    if word.exact:
        return [path_of(word)]
    if word.choices:
        return list(word.choices)
    text = _HOME.sub("~", word.value)
    if (word.source != word.value and text == word.value) or not _GLOB.fullmatch(text):
        return [""]
    return ["" if "{" in choice else choice for choice in _without_braces(text)]


def _without_braces(text: str) -> list[str]:
    """Return the texts that bash or curl makes of a text with braces. A brace that stays is not
    understood."""
    texts = [text]
    for _ in range(8):
        if not any(map(_BRACES.search, texts)) or len(texts) > _MOST_BRACES:
            break
        texts = [
            text[: found.start()] + choice + text[found.end() :] if found else text
            for text in texts
            for found in [_BRACES.search(text)]
            for choice in (_choices(found) if found else [""])
        ]
    return texts


def _choices(braces: re.Match[str]) -> list[str]:
    if braces[1] is not None:
        return braces[1].split(",")
    first, last = sorted((ord(braces[2]), ord(braces[3])))
    return [chr(code) for code in range(first, min(last, first + _MOST_BRACES) + 1)]


def decoded(word: Word) -> list[str]:
    """Return what bash may make of a word if its expansions are empty."""
    if word.exact:
        return [word.value]
    if word.choices and not any(map(IS_GLOB.search, word.choices)):
        return list(word.choices)
    text = _ANSI_QUOTED.sub(lambda quoted: _ESCAPE.sub(_sign, quoted[1]), word.value)
    text = _SPACE.sub(" ", text)
    given = _DEFAULT.sub(lambda found: re.sub(r"[\\\"']", "", found[found.lastindex or 0]), text)
    texts = [_EXPANSION.sub("", each) for each in dict.fromkeys((text, given))]
    if text.startswith("$") and texts[0].startswith("/"):  # ``$folder/.env``
        texts += [f".{texts[0]}", f"~{texts[0]}"]
    return [each for text in texts for each in _without_braces(text)]


def literal(words: Iterable[Word]) -> list[str]:
    """Return the paths that words name, also those that begin with ``$HOME`` or ``$PWD``."""
    found = []
    for word in words:
        found += [path for path in targets_of(word) if word.exact or not IS_GLOB.search(path)]
        text = word.value
        if not word.exact:
            text = _HERE.sub(".", _LIKE_HOME.sub("~", _HOME.sub("~", text)))
            text = _PROCESS.sub("/proc/self/", text)
            text = _ANSI_QUOTED.sub(lambda quoted: _ESCAPE.sub(_sign, quoted[1]), text)
        if (text != word.value and "$" not in text) or "{" in text:
            found += _without_braces(text)
    return [path for path in found if path and path not in _NO_FILE]


def pieces(text: str) -> Iterator[str]:
    """Yield a text, and its parts between signs that join a path to something: ``file=@path``."""
    yield text
    if len(text) <= _LONGEST and _SIGNS.search(text):
        yield from filter(None, _SIGNS.split(re.sub(r"^.*?fileb?://", "", text)))


def _sign(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2] or escape[3]
    code = int(digits, 16) if digits else int(escape[4] or "0", 8)
    return {"n": "\n", "t": "\t"}.get(escape[5], escape[5]) or (
        chr(code) if code <= sys.maxunicode else ""
    )


def _change(files: Files, word: Word, *, deep: bool) -> None:
    for path in _readings(word):
        if path in _NO_FILE:
            continue
        if not path:
            files.below.append(_ANYWHERE)
        elif not word.exact and IS_GLOB.search(path):
            files.below.append(matching(path, deep))
        else:
            files.changes.append(path)
            if deep:
                files.below.append(Below(path, "**", deep=True))


def matching(glob: str, deep: bool = False, reads: bool = False) -> Below:
    """Return the paths that a glob may become, which a program ``reads`` or else changes."""
    before = IS_GLOB.split(glob, maxsplit=1)[0]
    folder, slash, _ = before.rpartition("/")
    if _UPWARDS.search(glob, len(folder)):
        return _ANYWHERE._replace(reads=reads)
    name, below, _ = glob[len(folder + slash) :].partition("/")
    return Below(folder or slash or ".", name, deep or bool(below), reads)


def _select(files: Files, words: Sequence[Word]) -> None:
    """Note the files that patterns of git's match: ``*`` stands for what starts with a dot too."""
    every = literal(words)
    included = [_MAGIC.sub("", path) for path in every if not _LEAVES_OUT.match(path)]
    if every and not (included and all(included)):
        files.below.append(Below(".", "**", deep=True))
    for plain in included:
        files.changes.append(plain)
        if IS_GLOB.search(plain):
            folder, name, deep, *_ = matching(plain, deep=True)
            names = (name, name.lstrip("*"), f".{name}")
            files.below += [Below(folder, each, deep) for each in names if each]


def _shown(files: Files, words: Sequence[Word]) -> None:
    """Note the files of revisions (``HEAD:f``), and the files that git's own patterns match."""
    files.reads += filter(None, (path.rpartition(":")[2] for path in literal(words)))
    selected = Files()
    patterns = [word for word in words if IS_GLOB.search(word.value) or ":(" in word.value]
    _select(selected, [word for word in patterns if not _LEAVES_OUT.match(word.value)])
    files.reads += selected.changes
    files.below += [each._replace(reads=True) for each in selected.below]


def _copy(files: Files, words: Sequence[Word], call: _Call, does: str) -> None:
    into = call.valued(call.usage.items("into"))
    *sources, target = [*words, *into[-1:]] if words or into else [_UNKNOWN]
    deep = does == "moves" or not call.usage.items("recursive").isdisjoint(call.given)
    if deep and not {"-T", "--no-target-directory"}.isdisjoint(call.given):
        _change(files, target, deep=True)
    _read(files, sources or [target])
    for source in sources if deep and not call.valued(("--exclude", "--filter")) else ():
        _gather(files, source)
    if does == "moves":
        for source in sources:
            _change(files, source, deep=True)
    if not sources:
        return
    for path in _readings(target):
        if not path or (not target.exact and IS_GLOB.search(path)):
            files.below.append(matching(path, deep=True) if path else _ANYWHERE)
            continue
        files.changes.append(path)
        if does == "links":
            folders = (path, path.rpartition("/")[0])
            files.changes += [joined(each, to) for to in literal(sources) for each in folders]
        for source in sources:
            _copied(files, source, path.rstrip("/") or "/", deep)


def _copied(files: Files, source: Word, target: str, deep: bool) -> None:
    """Note the files that a copied ``source`` changes in the folder ``target``."""
    for path in _readings(source):
        named = _NAME.fullmatch(path or source.value)
        name = path.rstrip("/").rpartition("/")[2] if path else named[1] if named else ""
        name = name.rpartition(":")[2]  # ``host:f`` becomes f
        whole = path.endswith("/") or name in (".", "..")
        if path and deep and whole:
            files.below.append(Below(target, "**", deep=True))
        if name in (".", ".."):
            continue
        if name and not (path and not source.exact and IS_GLOB.search(name)):
            files.changes += [f"{target.rstrip('/')}/{each}" for each in {name, path or name}]
        else:
            files.below.append(Below(target, name, deep))


def _offered(word: Word) -> list[str]:
    """Return the files in a text such as ``x=@a,b;type=c``."""
    if not word.exact:
        word = _piece(word, word.value) if "{" in word.value else _UNKNOWN
    found = []
    for sign in re.finditer("[@<]", word.value):
        rest = word.value[sign.end() :]
        for text in _without_braces(rest):
            found += [text, *re.split("[,;]", text)]
    return [path for path in (text.strip("\"'") for text in found) if path and path not in _NO_FILE]


def _in_url(word: Word) -> list[str]:
    """Return the file in an URL (``file:///etc/passwd``); "" for one that is not known."""
    found = _FILE_URL.search(word.value) if ":" in word.value else None
    if found is None:
        return []
    if not word.exact or "[" in word.value:
        return [""]
    return [unquote(text) for text in _without_braces(found[1]) if text]


def _special(program: str, arguments: Sequence[Word], call: _Call, files: Files) -> None:
    """Note the files of programs whose arguments no table describes."""
    match program:
        case "sed" | "gsed":
            _write(files, _edited(arguments))
        case "curl":
            certificates = call.valued(("-E", "--cert", "--proxy-cert"))
            files.reads += [path.rpartition(":")[0] for path in literal(certificates)]
            files.writes += map(path_of, _curl(call))
        case "wget" | "wget2":
            files.writes += map(path_of, _wget(call))
        case "git-stash" if "show" in call.given:
            files.reads += literal(call.operands)
        case "git-archive":
            files.reads += [path.rpartition(":")[2] for path in literal(call.operands)]
        case "zip" | "7z" | "7za" | "7zr" | "7zz" | "rar" | "unrar":
            if any(re.match("(?:-[ix]r?)?@|-@$", word.value) for word in arguments):
                files.below.append(ANY_READ)
        case "node" | "nodejs" if any(word.value.startswith("dotenv") for word in arguments):
            files.reads.append(".env")
        case "docker" | "podman" | "nerdctl" | "docker-compose" if (
            call.given & {"compose", "config", "convert"}
            and {"config", "convert"} & {word.value for word in call.operands}
            and not call.given & _COMPOSE_NAMES
        ):
            files.reads.append(".env")
        case "rename" | "prename":
            files.changes += [
                each for path in literal(call.operands[:1]) for each in path.split("/")
            ]
        case "rg" | "ag" | "ack" | "git-grep":  # without an operand they read the folder
            files.reads.append(".")
        case "grep" | "egrep" | "fgrep" if len(call.operands) < 2:
            if any(re.match("-[A-Za-z]*[rR]|--(?:dereference-)?rec", name) for name in call.given):
                files.reads.append(".")
        case _ if programs.compiles(program):
            for word in arguments:
                if word.value.startswith(("-W", "--")):
                    files.reads += pieces(word.value)
                    files.changes += pieces(word.value)


def _edited(arguments: Sequence[Word]) -> list[Word]:
    if not any(_IN_PLACE.fullmatch(word.value) for word in arguments):
        return []
    found: list[Word] = []
    skip = False
    for word in arguments:
        if word.value.startswith("-") and not skip:
            skip = word.value in ("-e", "-f", "--expression", "--file")
        elif skip:
            skip = False
        else:
            found.append(word)
    has_script = any(_SED_SCRIPT.fullmatch(word.value) for word in arguments)
    return found if has_script else found[1:]


def _curl(call: _Call) -> list[Word]:
    names = call.given
    if {"-O", "-J", "--remote-name", "--remote-name-all", "--remote-header-name"} & names:
        certain = not {"-J", "--remote-header-name", "--output-dir"} & names
        return [_downloaded(word, "") if certain else _UNKNOWN for word in call.operands]
    outputs = call.valued(("-o", "--output"))
    unknown = "--output-dir" in names or any(re.search("#[0-9]", word.value) for word in outputs)
    return [_UNKNOWN] if outputs and unknown else []


def _wget(call: _Call) -> list[Word]:
    names = {name for name, _ in call.options}
    if names & programs.WGET_NO_FILE:
        return []
    if not names <= programs.WGET_PLAIN | call.usage.items("writes"):
        return [_UNKNOWN]
    return [_downloaded(word, "index.html") for word in call.operands]


def _downloaded(address: Word, otherwise: str) -> Word:
    """Return the file that the end of an address names, or else ``otherwise``."""
    place = re.sub(r"^[a-z]+://", "", address.value) if address.exact else ""
    if named := _URL.fullmatch(place):
        return Word(named[1], named[1])
    bare = re.fullmatch(r"[A-Za-z0-9.:-]+/?", place)
    return Word(otherwise, otherwise) if bare and otherwise else _UNKNOWN
