"""A first job file for a repository: what is found in it, and the file that is written from that."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from jinja2 import Environment
from markupsafe import Markup

from runner.app.humanize import cell
from runner.app.transcript_page import environment
from runner.errors import UsageError
from runner.jobfile.items import matches_path
from runner.permissions import Rule
from runner.permissions.examples import matches
from runner.permissions.rules import problem
from runner.settings import tool_environment
from runner.workspace.git import Git, GitError

Template = Literal["refactor", "review", "migrate", "audit"]
TEMPLATES: tuple[Template, ...] = get_args(Template)
# What each template asks for, if the person says nothing else.
TASKS: Mapping[Template, str] = {
    "refactor": "Simplify the code without changing what it does.",
    "review": "Review the code as a careful colleague: bugs, unclear names, missing tests.",
    "migrate": "Replace deprecated calls by what their documentation recommends today.",
    "audit": "Look for security problems: injection, unsafe input, secrets, missing checks of rights.",
}

_MOST_BYTES = 200_000  # of a file that is looked into
_MOST_FILES = 20_000  # that are looked at where there is no repository
_TESTS = re.compile(
    r"(^|[/_.-])(tests?|specs?|__tests__|testdata|fixtures|conftest)([/_.-]|$)", re.I
)
_GENERATED = re.compile(r"(^|/)(node_modules|vendor|target|build|dist|\.[^/]*)/")
_REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "dev-requirements.txt")
_SUFFIXES = {
    "Python": (".py",),
    "Node": (".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs"),
    "Rust": (".rs",),
    "Go": (".go",),
    "Java": (".java", ".kt"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """The files, language and commands found in a folder."""

    root: Path  # of the repository, else the folder
    is_committed: bool  # a git repository with a commit
    files: tuple[str, ...] = ()  # their paths below ``root``, those that git ignores left out
    language: str | None = None
    pattern: str | None = None  # of the files that are worth an item each
    test: str | None = None  # the command that says whether the code is right
    setup: tuple[str, ...] = ()  # commands that make a new worktree ready
    caches: tuple[str, ...] = ()  # of the home, that tests read
    installs: tuple[str, ...] = ()  # rules of the commands that change dependencies


def look_at(folder: Path) -> Found:
    """Return what is found in a folder, or in the git repository around it. Raises ``UsageError`` if it
    cannot be read."""
    git = Git(folder, tool_environment(os.environ))
    try:
        top = os.fsdecode(git.run("rev-parse", "--show-toplevel", accept=(0, 128))).rstrip("\n")
        root = Path(top or folder)
        is_committed = bool(top and git.run("rev-parse", "-q", "--verify", "HEAD", accept=(0, 1)))
        files = _in_repository(Git(root, git.environment)) if top else _in_folder(root)
    except (GitError, OSError) as error:
        raise UsageError(f"{folder} cannot be looked at: {error}") from error
    found = _languages(root, files)
    kind = max(found, key=lambda each: found[each][0], default=None)
    pattern = _pattern(files, _SUFFIXES.get(kind or "", ()))
    if kind is None:
        return Found(root, is_committed, files, None, pattern)
    return Found(root, is_committed, files, kind, pattern, **found[kind][1])


def _in_repository(git: Git) -> tuple[str, ...]:
    listed = git.run("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return tuple(sorted(filter(None, os.fsdecode(listed).split("\0"))))


def _in_folder(root: Path) -> tuple[str, ...]:
    found: list[str] = []
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not _GENERATED.search(f"/{name}/"))
        found += (str(Path(folder, file).relative_to(root)) for file in sorted(files))
        if len(found) > _MOST_FILES:
            break
    return tuple(found[:_MOST_FILES])


def _languages(root: Path, files: Sequence[str]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return the languages of the files: how many files are in each, a build file counting for many, and
    what follows for the fields of ``Found``."""
    there = set(files)

    def read(*names: str) -> str:
        paths = (root / name for name in names if name in there)
        return "\n".join(p.read_bytes()[:_MOST_BYTES].decode(errors="replace") for p in paths)

    looks = {
        "Python": (("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"), _python),
        "Node": (("package.json",), _node),
        "Rust": (("Cargo.toml",), _rust),
        "Go": (("go.mod",), _go),
        "Java": (("pom.xml", "build.gradle", "build.gradle.kts"), _java),
    }
    found = {}
    for name, (builds, look) in looks.items():
        count = sum(file.endswith(_SUFFIXES[name]) for file in files)
        weight = count + 1_000 * bool(there.intersection(builds))
        if weight:
            found[name] = (weight, look(root, there, read))
    return found


def _python(root: Path, there: set[str], read: Any) -> dict[str, Any]:
    tests = [f for f in there if re.search(r"(^|/)(test_[^/]*|[^/]*_test)\.py$", f)]
    lists = [name for name in _REQUIREMENTS if name in there]
    configured = read("pyproject.toml", "setup.cfg", "tox.ini", *lists)
    uses_pytest = "pytest" in configured or any(f.endswith("conftest.py") for f in there)
    python, found = "python3", dict[str, Any]()
    if "uv.lock" in there:
        python = "uv run python3"
        found = {"setup": ("uv sync",), "caches": ("uv",), "installs": ("Bash(uv add *)",)}
    elif (root / ".venv").is_dir() and not any(f.startswith(".venv/") for f in there):
        # The folder's own would test the code that is checked out, not that of the worktree.
        python = ".venv/bin/python"
        needs = ["-e ."] if {"pyproject.toml", "setup.py"} & there else []
        needs += [f"-r {name}" for name in lists] + ["pytest"] * uses_pytest
        installing = (f"{python} -m pip install --quiet {' '.join(needs)}",) if needs else ()
        found = {"setup": ("python3 -m venv .venv", *installing)}
    folders = {f.split("/")[0] for f in tests if "/" in f}
    if uses_pytest:
        test = "pytest -q"
    elif not tests:
        test = "compileall -q ."
    elif len(folders) == 1 and f"{(top := folders.pop())}/__init__.py" not in there:
        test = f"unittest discover -s {top}"
    else:
        test = "unittest"
    installs = ("Bash(pip install *)", f"Bash({python} -m pip install *)")
    return {"test": f"{python} -m {test}", "installs": installs, **found}


def _node(root: Path, there: set[str], read: Any) -> dict[str, Any]:
    try:
        package = json.loads(read("package.json") or "{}")
    except ValueError:
        package = {}
    package = package if isinstance(package, dict) else {}
    scripts = package.get("scripts")
    scripts = scripts if isinstance(scripts, dict) else {}
    name = next((n for n in ("pnpm", "yarn") if {f"{n}-lock.yaml", f"{n}.lock"} & there), "npm")
    has_test = scripts.get("test") and "no test specified" not in str(scripts["test"])
    test = f"{name} test" if has_test else f"{name} run build" if scripts.get("build") else None
    frozen = "npm ci" if "package-lock.json" in there else "npm install"
    install = frozen if name == "npm" else f"{name} install --frozen-lockfile"
    needs = any(package.get(key) for key in ("dependencies", "devDependencies"))
    caches = ("npm",) if name == "npm" else ("yarn",) if name == "yarn" else ()
    add = "install" if name == "npm" else "add"
    return {
        "test": test,
        "setup": (install,) if needs else (),
        "caches": caches,
        "installs": (f"Bash({name} {add} *)",),
    }


def _rust(root: Path, there: set[str], read: Any) -> dict[str, Any]:
    return {"test": "cargo test --quiet", "caches": ("cargo",), "installs": ("Bash(cargo add *)",)}


def _go(root: Path, there: set[str], read: Any) -> dict[str, Any]:
    return {"test": "go test ./...", "caches": ("go",), "installs": ("Bash(go get *)",)}


def _java(root: Path, there: set[str], read: Any) -> dict[str, Any]:
    if "pom.xml" in there:
        test = f"{'./mvnw' if 'mvnw' in there else 'mvn'} -q test"
        return {"test": test, "caches": ("maven",), "installs": ("Edit(pom.xml)",)}
    test = f"{'./gradlew' if 'gradlew' in there else 'gradle'} test"
    return {"test": test, "caches": ("gradle",), "installs": ("Edit(*.gradle*)",)}


def _pattern(files: Sequence[str], suffixes: Sequence[str]) -> str | None:
    """Return a pattern of the files with the most frequent suffix, in the folder that has most of them:
    tests and hidden files do not count."""
    own = [f for f in files if not _TESTS.search(f) and not _GENERATED.search(f"/{f}")]
    own = [f for f in own if "/." not in f"/{f}" and f.isprintable()]
    counts = Counter(PurePosixPath(f).suffix for f in own)
    wanted = {suffix: counts[suffix] for suffix in suffixes or counts if suffix and counts[suffix]}
    if not wanted:
        return None
    suffix = max(wanted, key=lambda each: wanted[each])
    own = [f for f in own if f.endswith(suffix)]
    tops = Counter(f.split("/")[0] if "/" in f else "" for f in own)
    top = max(tops, key=lambda each: (tops[each], each != ""))
    if not top:
        return _names(suffix)
    folder = os.path.commonpath(
        [str(PurePosixPath(f).parent) for f in own if f.startswith(f"{top}/")]
    )
    return f"{escape(folder)}/**/{_names(suffix)}"


def _names(suffix: str) -> str:
    """Return a pattern of names: of Python not ``__init__.py`` and its like, which are mostly empty."""
    return f"{'[!_]' if suffix == '.py' else ''}*{suffix}"


def files_matching(found: Found, pattern: str) -> int:
    """Return how many files match a pattern."""
    parts = PurePosixPath(pattern).parts
    return sum(matches_path(file.split("/"), parts) for file in found.files)


def default_verify(found: Found, template: Template) -> str | None:
    """Return the command that decides whether a run has succeeded; None if nothing can be known."""
    if template in ("review", "audit"):
        return "git diff --quiet HEAD" if found.is_committed else found.test
    return found.test or ("git diff --check HEAD" if found.is_committed else None)


def render(
    found: Found,
    template: Template,
    *,
    task: str,
    pattern: str | None,
    verify: str | None,
    file: Path,
) -> str:
    """Return the text of a job file that will stand at ``file``. ``pattern`` names the files that get a run
    each (None: one run for all), ``verify`` the command that decides whether it has succeeded."""
    commands = [part.strip() for part in re.split(r"&&|;", verify or "") if part.strip()]
    rules = [f"Bash({command} *)" for command in commands]
    return (
        _toml_environment()
        .get_template("job.toml")
        .render(
            template=template,
            name=file.stem,
            file=os.path.relpath(file),
            found=found,
            folder=os.path.relpath(found.root, file.absolute().parent),
            edits=template in ("refactor", "migrate"),
            tests=sorted(
                {f.split("/")[0] for f in found.files if re.match("(tests?|specs?|__tests__)/", f)}
            ),
            task=task.strip(),
            pattern=pattern,
            verify=verify,
            allowed=[
                (rule, command)
                for rule, command in zip(rules, commands, strict=True)
                if _fits(rule, command)
            ],
        )
    )


def _fits(rule: str, command: str) -> bool:
    """True if a rule is one, and allows this command."""
    return problem(rule, "allow") is None and matches(Rule("allow", rule), f"Bash({command})")


@cache
def _toml_environment() -> Environment:
    found = environment(_toml)
    found.filters |= {"lines": _lines, "comment": lambda value: Markup(cell(value))}
    return found


def _toml(value: Any) -> Markup:
    """Return a value as TOML on one line, so that nothing in it ends a string."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, list | tuple):
        return Markup("[{}]").format(Markup(", ").join(map(_toml, value)))
    return Markup(json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f"))


def _lines(text: str) -> Markup:
    """Return a text as the inside of a TOML string of several lines."""
    return Markup("\n").join(_toml(line)[1:-1] for line in text.split("\n"))
