"""What bash really ran is among the parts: scripts are run by a real bash whose programs are stubs
that write down how they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.permissions.shell import Script, analyse

PROGRAMS = ("aa", "bb", "cc", "dd", "ee")
WRAPPERS = ("timeout", "env", "nice", "nohup", "xargs", "bash", "sh", "setsid", "stdbuf", "tee")
STUB = """#!/bin/sh
line=${0##*/}
for word; do line="$line $word"; done
printf '%s\\0' "$line" >> "$LOG"
"""
WORDS = (
    "x", "-rf", "'a b'", '"c"', "a\\ b", "$v", '"$v"', "${v}", "${v:-d}", "*", "{p,q}", "~/h",
    "''", "$'\\x61'", "#h", "a#b", "\\;", '"\\""', "'\\'", '"`"', "{}", "=x", "a=b", "--", "-",
    "!", "$", '"$"', '"a $ b"', "\\$(bb)", "'$(bb)'", "`bb`", "$(bb y)", '"$(cc)"', '"`dd z`"',
    "<(ee)", "$((1+2))", "${#v}", "${v%x}", '"${v:-$(bb)}"', "${v:-`cc`}", "\\\n", '"a\\\nb"',
    "time", "do", "$(< f1)", "é", "\\#", "x\\", "$(bb;cc)", "$( (dd) )", "`bb \\`cc\\``",
    '"$\\\n(bb)"', "$\\\n(cc)", "(", ")", "`", '"', "'", "[[", "]]", "$[1+1]", "${v@P}", "${!v}",
    "$(", "${", "&&", "||", "|", "&", ";", "<", ">", "\n", "# c\n", "\r",
)  # fmt: skip
REDIRECTS = (
    "> f1", ">> f2", "2>&1", "&> f3", ">| f4", "< f1", "<<< $(bb)", "<<< '$(bb)'", "> $v", "2> f5",
    ">&2", "> \"f 6\"", "<> f7", "3> f8", ">f9", "> f1 y", "{fd}> f2", ">& f3", "2 > f4", "&>> f5",
)  # fmt: skip
HEREDOCS = (
    "<<E\nx\nE\n", "<<'E'\n$(bb)\nE\n", "<<E\n$(bb)\nE\n", "<<E\n`cc`\nE\n",
    "<<E 2>&1 | dd\nx\nE\n", "<<E | dd\nx\nE\n", "<<E && dd\nx\nE\n", "<<-E\n\tx\n\tE\n",
    '<<"E"\n`cc`\nE\n', "<<E\n\\$(bb) $v\nE\n", "<<E\n$\\\n(bb)\nE\n", "<<E; cc\nx\nE\n",
    "<<E > f1 y\nx\nE\n", "<<E\nx\nE", "<<E\nE x\nE\n", "<<E <<F\nE\nF\n", "<<E\nx\n E\nE\n",
    "<<\\E\n$(bb)\nE\n", "<<E\nx\nE \nE\n", "<<E & cc\nx\nE\n", "<<E\n${v:-$(dd)}\nE\n",
    "<<E || cc\n$((1))\nE\n", "<<-E\n\tx\nE\n", "<<E\n\"$(bb)'`cc`\nE\n",
    "<<E y | bb > f2\nx\nE\n",
)  # fmt: skip
JOINS = (
    "; ",
    " && ",
    " || ",
    " | ",
    " & ",
    "\n",
    " |& ",
    ";",
    "\n\n",
    " && \\\n",
    ";;",
    "\\\n",
    " # c\n",
    "&",
    "|",
)
WRAPS = (
    "timeout 5 {0}", "env {0}", "env A=1 {0}", "nice -n 5 {0}", "command {0}", "exec {0}",
    "time {0}", "! {0}", "bash -c '{0}'", "sh -c '{0}'", 'bash -c "{0}"', "eval '{0}'", "eval {0}",
    "( {0} )", "{{ {0}; }}", "if {0}; then {1}; fi", "if aa; then {0}; else {1}; fi",
    "for i in x $(dd); do {0}; done", "case x in x) {0};; esac", "while {0}; do {1}; break; done",
    "f() {{ {0}; }}; f", "f() {{ {0}; }}; {1}; f z", "function aa {{ {0}; }}; {1}", "V=$({0})",
    "v=x {0}", "A=1 {0}", "v={0}", "export v=$({0})", "local v=$({0})", "[[ -n $({0}) ]]",
    "[ x = \"$({0})\" ]", "(( $({0}) ))", "echo {0} | xargs bb", "printf x | {0}",
    "trap '{0}' EXIT", "coproc {0}", "nohup {0}", "setsid -w {0}", "aa=({0})", "aa=(x $({0}))",
    "until aa; do {0}; done", "select i in x; do {0}; done", "{0} | while read l; do {1}; done",
    "exec > f1; {0}", "builtin {0}", "command -v {0}", "stdbuf -o L {0}", "env -i A=b nice {0}",
    "xargs -I% {0}", "for ((i=0;i<2;i++)); do {0}; done", "time ( {0} )", "time {{ {0}; }}",
    "time -p {0}", "{0} | tee f1", "\\{0}", "unset -f f; {0}", "f() ( {0} ); f & f",
    "aa() {{ :; }} & {0}", "nohup -- {0}", "env -S '{0}'", "set -e; {0}", "cat <<E\n$({0})\nE\n",
    "case $({0}) in *) {1};; esac", "[[ a == a && -n b ]] && {0}", "{0} \\\n  y", "let 'x={0}'",
    "x=y\n{0}", ": ${{v:=$({0})}}", "a[$({0})]=1", "echo $(({0}))", "echo $(( {0} ) )",
    "{0} {{fd}}> f1", "{0}()", "case x in a|b) {0};; *) {1} esac", "[[ x == {0} ]] && {1}", "f() {0}",
    "[[ ! -f x && ( {0} =~ ^(a|b)+$ ) ]]", "{0} > 2>&1", "{0} | ! {1}", "for i in\n {0}; do {1}; done",
)  # fmt: skip


MOVES = (
    "cd d",
    "cd d > {f}",
    "> {f} cd d",
    "cd d/d",
    "pushd d > {f}",
    "eval cd d",
    "command cd d",
    "cd d x > {f}",
)
WRITES = (
    "echo x > {f}",
    "> {f} echo x",
    "tee {f} < /dev/null",
    "aa 2> {f} >> {f}",
    "echo `aa > {f}` > {f}",
)
MOVED = (
    "{0}; {1}", "{0} && {1}", "{0} || {1}", "{0} | {1}", "{0} & {1}", "{0}\n{1}", "( {0} )", "{{ {0}; }}",
    "{0} && {1} > {f}", "{{ {0}; }} > {f}", "( {0} ) > {f}; {1}", "! {0} > {f}", "time {0} > {f}",
    "for i in 1 2; do {0}; {1}; done > {f}", "for ((i=0;i<2;i++)); do {0}; {1}; done > {f}",
    "while {0}; do {1}; [ -e d ] || break; done > {f}", "until {0}; do {1}; break; done",
    "if {0}; then {1}; fi > {f}", "case x in x) {0};; esac > {f}; {1}", "f() {{ {0}; }}; {1}; f; f",
    "g() {{ {0}; }} > {f}; {1}; g", "f() ( {0} ) > {f}; {1}; f; f", "v=$({0}); {1}", "echo $({0}) > {f}",
    "eval '{0}; {1}' > {f}", "bash -c '{0}; {1}'; {1}", "trap '{0}' EXIT; {1}", "trap '{0}' DEBUG; {1}",
    "cd d <<E && {0}\nE\n", "cd d <<E | {0}\nE\n", "aa <<E > {f} && {1}\n$({0})\nE\n",
    "cd d <<E > {f}\n$({0})\nE\n",
)  # fmt: skip


def moving(random: Random, depth: int = 3) -> str:
    """A script that changes its folder and writes files; ``{f}`` stands for each of their names."""
    if depth == 0 or random.random() < 0.2:
        return random.choice(MOVES if random.random() < 0.4 else WRITES)
    inner = (moving(random, depth - 1) for _ in range(2))
    return random.choice(MOVED).format(*inner, f="{f}")


def simple(random: Random) -> str:
    pieces = [random.choice(PROGRAMS)]
    for _ in range(random.randint(0, 3)):
        pieces.append(random.choice(WORDS[:50] if random.random() < 0.85 else WORDS))
    if random.random() < 0.2:
        pieces.insert(random.randint(0, len(pieces)), random.choice(REDIRECTS))
    if random.random() < 0.1:
        pieces.append(random.choice(HEREDOCS))
    return " ".join(pieces)


def script(random: Random, depth: int = 3) -> str:
    if depth == 0 or random.random() < 0.3:
        return simple(random)
    if random.random() < 0.5:
        return random.choice(JOINS).join(script(random, depth - 1) for _ in range(2))
    text = random.choice(WRAPS).format(script(random, depth - 1), script(random, depth - 1))
    return spoil(random, text) if random.random() < 0.1 else text


def spoil(random: Random, text: str) -> str:
    at = random.randint(0, len(text))
    noise = random.choice(
        [
            "\\",
            "\n",
            " ",
            "'",
            '"',
            "`",
            "$",
            "(",
            ")",
            ";",
            "&",
            "|",
            "<",
            ">",
            "#",
            "\\\n",
            "{",
            "}",
        ]
    )
    return text[:at] + noise + text[at + random.randint(0, 1) :]


class Sandbox:
    """A bash that finds nothing but stubs and a few real wrappers."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.work, self.logs = folder / "bin", folder / "work", folder / "logs"
        self.runs = 0
        self.logs.mkdir()
        self.programs.mkdir()
        for name in PROGRAMS:
            stub = self.programs / name
            stub.write_text(STUB)
            stub.chmod(0o755)
        for name in WRAPPERS:
            real = shutil.which(name)
            if real:
                (self.programs / name).symlink_to(real)
        self.bash = shutil.which("bash")

    def reads(self, command: str) -> bool:
        """True if bash's parser takes the command."""
        bash = [self.bash or "bash", "-n", "-c", "--", command]
        return not subprocess.run(bash, capture_output=True, check=False).stderr

    def run(self, command: str) -> tuple[list[str], set[str]]:
        """The calls of stubs, and the files that are there afterwards."""
        shutil.rmtree(self.work, ignore_errors=True)
        # A folder and a log of its own: what an earlier script left in the background still writes to
        # that one's.
        self.runs += 1
        self.work = self.work.with_name(f"work-{self.runs}")
        (self.work / "d" / "d" / "d").mkdir(parents=True)
        log = self.logs / str(self.runs)
        environment = {
            "PATH": str(self.programs), "LOG": str(log), "HOME": "/nowhere", "v": "x y", "FUNCNEST": "20",
        }  # fmt: skip
        process = subprocess.Popen(
            [self.bash or "bash", "-c", command],
            cwd=self.work, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                process.poll()
            process.wait()
        text = log.read_bytes().decode(errors="replace") if log.exists() else ""
        calls = text.split("\0")[:-1]
        return calls, {path.name for path in self.work.iterdir()} - {"d"}

    def astray(self) -> set[str]:
        """The names of the files that the last script left in other folders."""
        return {path.name for path in (self.work / "d").rglob("*") if path.is_file()}


def unseen(command: str, seen: Script, calls: list[str], files: set[str]) -> list[str]:
    """What bash did that the analysis does not know."""
    texts = {form for part in seen.parts for form in part.forms}
    names = {text.split(" ")[0].rpartition("/")[2] for text in texts}
    if (
        any(character in command for character in "$`*{~")
        or "xargs" in command
        or "<(" in command
        or ">(" in command
    ):
        missing = [call for call in calls if call.split(" ")[0] not in names]
    else:
        missing = [call for call in calls if call not in texts]
    if "" not in seen.writes:
        missing += [
            f"> {name}" for name in files - {path.removeprefix("./") for path in seen.writes}
        ]
    return missing


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox(tmp_path_factory.mktemp("sandbox"))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(min_value=0, max_value=2**48))
def test_whatever_bash_runs_is_a_part_or_the_script_is_unanalyzable(
    sandbox: Sandbox, seed: int
) -> None:
    command = script(Random(seed))
    seen = analyse(command)
    if not seen.unanalyzable:
        assert sandbox.reads(command)
        calls, files = sandbox.run(command)
        assert unseen(command, seen, calls, files) == []


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(min_value=0, max_value=2**48))
def test_a_target_is_opened_where_it_says_or_its_place_is_not_known(
    sandbox: Sandbox, seed: int
) -> None:
    pieces = moving(Random(seed)).split("{f}")
    command = pieces[0] + "".join(f"f{number}{text}" for number, text in enumerate(pieces[1:]))
    seen = analyse(command)
    if seen.complete:
        _, files = sandbox.run(command)
        assert sandbox.astray() & set(seen.writes) == set(), command
        assert sandbox.astray() | files <= {*seen.writes, *seen.after_cd}, command
