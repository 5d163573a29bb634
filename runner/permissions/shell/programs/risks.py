"""Programs that run or overwrite what their arguments say: which arguments do.

Collected from the programs' manuals, https://gtfobins.github.io and the published advisories of tools
with such rules. A long option may be shortened (``--compress-p``), so the start of one counts too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.permissions.shell.programs.git import git_hides
from runner.permissions.shell.spelling import starts
from runner.permissions.shell.words import Word, names_in, risky_option


@dataclass(frozen=True, slots=True)
class Risky:
    """``letters`` are short options, ``options`` long ones without their dashes, ``words`` starts of
    whole arguments, ``first``: the first argument is a bundle of letters without a dash."""

    letters: str = ""
    options: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    first: bool = False


def _risky(letters: str = "", options: str = "", words: str = "", first: bool = False) -> Risky:
    return Risky(letters, tuple(options.split()), tuple(words.split()), first)


_TAR = _risky(
    "IF",
    "to-command checkpoint-action use-compress-program info-script new-volume-script rsh-command "
    "rmt-command",
    first=True,
)
_FD = _risky("xX", "exec exec-batch")
_MAKE = _risky("Ef", "eval file makefile", ".SHELLFLAGS")
_JAVAC = _risky(words="-processor -J -Xplugin @ --processor")
_MAKE_SETS = re.compile(r"([^=\s]+?)[:+?!]*=(.*)", re.DOTALL)
_MAKE_PLAIN = re.compile(r"[A-Za-z0-9_.,/-]*")
_MAKE_RUNS = re.compile(
    r"SHELL|CC|CXX|CPP|LD|AR|AS|RM|MAKE.*|.*(?:SHELL|CMD|COMMAND|WRAPPER|LAUNCHER)"
)
_ZIP = _risky("T", "unzip-command test", "-TT")
_LESS = _risky("koO", "lesskey-file lesskey-src lesskey-content log-file LOG-FILE", "+")
_COMPILER = _risky("", "", "-wrapper -fplugin -B -specs --specs")
_BAT = _risky(options="pager config-file diagnostic")
_CMAKE_RUNS = """
-DCMAKE_C_COMPILER -DCMAKE_C_FLAGS -DCMAKE_CXX_COMPILER -DCMAKE_CXX_FLAGS -DCMAKE_RULE_ -DCMAKE_PROJECT_
-DCMAKE_TOOLCHAIN_ -DCMAKE_LINKER -DCMAKE_AR= -DCMAKE_MAKE_PROGRAM CMAKE_C_COMPILER CMAKE_C_FLAGS
CMAKE_CXX_COMPILER CMAKE_CXX_FLAGS CMAKE_RULE_ CMAKE_PROJECT_ CMAKE_TOOLCHAIN_ CMAKE_LINKER
CMAKE_MAKE_PROGRAM"""
# gcc by its other names: x86_64-linux-gnu-gcc-12, clang++
_COMPILERS = re.compile(r"(?:.*-)?(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cpp|gfortran)(?:-[0-9.]+)?")
_BUILDS = names_in("gradle gradlew mvn mvnw just task rake ninja tox nox")
_PROJECTS = names_in("npm pnpm yarn bun make gmake cargo uv poetry go hatch pdm pipenv pytest")
_FOLDER = re.compile(r"-C|--(?:prefix|cwd|dir|directory|project|manifest-path|rootdir)")
_FILE = re.compile(
    r"-[CfbPpcd]|--(?:file|justfile|rakefile|build-file|project-dir|taskfile|dir|directory"
    r"|working-directory|project-prop)"
)
_OUTSIDE = re.compile(r"/|~|\$|(?:.*/)?\.\.(?:/|$)", re.DOTALL)
_NPX_FLAGS = frozenset(["-y", "--yes", "--no", "--no-install", "-q", "--quiet"])
_NPM_RUNS = frozenset(["run", "run-script", "rum", "urn"])
_TEX = _risky(
    options="shell-escape enable-write18 shell-restricted", words="-shell-escape -enable-write18"
)
_MAN = _risky("PHCK", "pager html config-file browser preprocessor troff-device", "-T -X -Z -p")

RISKY = {
    "find": _risky(words="-exec -ok -delete -fprint -fls"),
    "sort": _risky("o", "output compress-program"),
    "rg": _risky(options="pre hostname-bin"),
    "fd": _FD,
    "fdfind": _FD,
    "tar": _TAR,
    "bsdtar": _TAR,
    "gtar": _TAR,
    "rsync": _risky("eM", "rsh rsync-path remote-option daemon config", "rsync://"),
    "man": _MAN,
    "apropos": _MAN,
    "whatis": _MAN,
    "less": _LESS,
    "more": _risky(words="+"),
    "most": _risky(words="+"),
    "date": _risky("", "file set", "-f -s -uf -us -Rf -Rs"),
    "tree": _risky("oR"),
    "ag": _risky(options="pager"),
    "ack": _risky(options="pager output"),
    "split": _risky(options="filter"),
    "zip": _ZIP,
    "cpio": _risky("FHOI", "rsh-command to-stdout file"),
    "sdiff": _risky("o", "output diff-program"),
    "tcpdump": _risky("zwW"),
    "hg": _risky(options="config"),
    "svn": _risky(options="config-option editor-cmd diff-cmd diff3-cmd config-dir"),
    "javac": _JAVAC,
    "npm": _risky(options="script-shell node-options"),
    "cargo": _risky(options="config"),
    "gcc": _COMPILER,
    "g++": _COMPILER,
    "cc": _COMPILER,
    "clang": _COMPILER,
    "pdflatex": _TEX,
    "xelatex": _TEX,
    "lualatex": _TEX,
    "latexmk": _risky("e", "", "-r -pdflatex -latex -shell-escape --shell-escape"),
    "go": _risky(words="-exec -toolexec -vettool --exec --toolexec --vettool -modfile -overlay"),
    "wget": _risky("e", "execute use-askpass config"),
    "ctags": _risky("o", "options output"),
    "history": _risky("anrwsp"),
    "mapfile": _risky("C"),
    "readarray": _risky("C"),
    "xxd": _risky("r"),
    "file": _risky("Cm", "compile magic-file"),
    "pip": _risky(options="python"),
    "install": _risky(options="strip-program"),
    "dpkg": _risky(options="pre-invoke post-invoke"),
    "apt": _risky("o", "option config-file"),
    "apt-get": _risky("o", "option config-file"),
    "jq": _risky("L", "from-file rawfile slurpfile"),
    "curl": _risky("K", "config"),
    "shuf": _risky("o", "output"),
    "iconv": _risky("o", "output"),
    "bat": _BAT,
    "batcat": _BAT,
    "pandoc": _risky(
        "FLod",
        "filter lua-filter output defaults data-dir pdf-engine extract-media",
    ),
    "rpm": _risky("ED", "eval define pipe load macros rcfile root"),
    "rpmbuild": _risky("ED", "eval define load macros rcfile"),
    "cmake": _risky("", "install", f"-E -P -C {_CMAKE_RUNS}"),
}

_COMPILER_ENDS = (*"0123456789", "cc", "++", "clang", "cpp", "gfortran")

_SED_SAFE = re.compile(
    r"(?:[0-9$]+(?:,[0-9$+~]+)?|/[^/\n\\]*/)?\s*[pdqQ=]"
    r"|(?:[0-9$]+(?:,[0-9$]+)?)?\s*s([/|#,:@!])(?:(?!\1)[^\\\n]|\\.)*\1(?:(?!\1)[^\\\n]|\\.)*\1[gpiI0-9]*"
)
_AWK_RISKY = re.compile(r"system|[|@`]|getline|close|include|load|print.*>", re.DOTALL)
_SQLITE_RISKY = re.compile(r"^\s*\.|-cmd|-init|writefile|load_extension|edit\s*\(", re.MULTILINE)


def arguments_hide(name: str, arguments: Sequence[Word]) -> str:
    """Why the arguments of the program decide what is run; "" when they do not."""
    if name in _PROJECTS or name in _BUILDS:
        reason = _elsewhere(name, arguments)
        if reason:
            return reason
    check = _CHECKS.get(name)
    if check is not None:
        return check(arguments)
    risky = RISKY.get(name)
    if risky is None and name.endswith(_COMPILER_ENDS) and _COMPILERS.fullmatch(name):
        risky = _COMPILER
    return _listed(name, risky, arguments) if risky is not None else ""


def _elsewhere(name: str, arguments: Sequence[Word]) -> str:
    """What runs the scripts of a project, of one outside the folder that it was started in."""
    options = _FILE if name in _BUILDS else _FOLDER
    for at, word in enumerate(arguments):
        value = word.value
        if value == "--":
            break
        option = options.match(value)
        if option is None:
            continue
        rest = value[option.end() :]
        if rest.startswith("=") or (rest and not value.startswith("--")):
            given = rest.removeprefix("=")
        elif not rest and at + 1 < len(arguments):
            given = arguments[at + 1].value
        else:
            continue
        if _OUTSIDE.match(given):
            return f"{name} runs what is in {given}"
    return ""


def _npm(arguments: Sequence[Word]) -> str:
    values = [word.value for word in arguments]
    for at in starts(values):
        if values[at] in _NPM_RUNS:
            rest = values[at + 1 :]
            if any(rest[start] == "env" for start in starts(rest)):
                return "npm run env runs any command"
    return _listed("npm", RISKY["npm"], arguments)


def _npx(arguments: Sequence[Word]) -> str:
    """Only the options before the command are npx's."""
    own = list(arguments)
    while own and own[0].value in _NPX_FLAGS:
        own.pop(0)
    found = starts([word.value for word in own])
    risky = _risky("c", "call script-shell node-options")
    return _listed("npx", risky, own[: found[-1]] if found else own)


def _go(arguments: Sequence[Word]) -> str:
    values = [word.value for word in arguments]
    if values[:1] == ["env"] and any(re.match(r"--?[wu]", value) for value in values):
        return "go env -w sets the programs that go runs"
    return _listed("go", RISKY["go"], arguments)


def _listed(name: str, risky: Risky, arguments: Sequence[Word]) -> str:
    literal = False
    for index, word in enumerate(arguments):
        value = word.value
        if literal:
            break
        literal = value == "--" and name != "find"
        if word.loose or (name == "find" and value.startswith(("-", "$")) and not word.exact):
            return f"{name} gets arguments that are not literal"
        if value.startswith(risky.words):
            return f"{name} runs or writes what {value} says"
        if index == 0 and risky.first and not value.startswith("-"):
            value = f"-{value}"
        if risky_option(value, risky.letters, risky.options):
            return f"{name} runs or writes what {value.partition('=')[0]} says"
    return ""


def _make(arguments: Sequence[Word]) -> str:
    for word in arguments:
        context = _MAKE_SETS.fullmatch(word.value)
        if context and (_MAKE_RUNS.fullmatch(context[1]) or not _MAKE_PLAIN.fullmatch(context[2])):
            return f"make runs what {word.value} says"
    return _listed("make", _MAKE, arguments)


def _sqlite(arguments: Sequence[Word]) -> str:
    risky = any(word.loose or _SQLITE_RISKY.search(word.value) for word in arguments)
    return "sqlite3 runs the dot commands in its arguments" if risky else ""


def _sed(arguments: Sequence[Word]) -> str:
    scripts: list[Word] = []
    operands: list[Word] = []
    words = iter(arguments)
    for word in words:
        value = word.value
        if word.loose or (value.startswith("-") and not word.exact):
            return "sed gets arguments that are not literal"
        if value in ("-e", "--expression"):
            scripts.extend(script for script in (next(words, None),) if script is not None)
        elif value.startswith("--expression=") or re.match(r"-[nErsz]*e", value):
            return "sed has a script that is not understood"
        elif value.startswith("-i") or re.fullmatch(r"-[nErsuz]+i?|--[a-z-]+(?:=.*)?", value):
            if risky_option(value, "f", ("file",)):
                return "sed takes its script from a file"
        elif value.startswith("-"):
            return "sed has an option that is not known"
        else:
            operands.append(word)
    scripts = scripts or operands[:1]
    if all(word.exact and _sed_safe(word.value) for word in scripts):
        return ""
    return "sed can run commands and write files by its script"


def _sed_safe(script: str) -> bool:
    return _SED_SAFE.fullmatch(script) is not None or all(
        _SED_SAFE.fullmatch(command.strip()) for command in re.split(r"[;\n]", script)
    )


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
        elif not word.exact or _AWK_RISKY.search(value.replace("||", "")):
            break
        else:
            return ""
    return "awk can run commands and write files by its program"


_CHECKS: dict[str, Callable[[Sequence[Word]], str]] = {
    "sed": _sed,
    "gsed": _sed,
    "awk": _awk,
    "gawk": _awk,
    "mawk": _awk,
    "nawk": _awk,
    "git": git_hides,
    "sqlite3": _sqlite,
    "make": _make,
    "gmake": _make,
    "npm": _npm,
    "npx": _npx,
    "go": _go,
}
