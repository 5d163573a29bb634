"""Looks for commands in the sandbox whose effects the rules deny: a tree of canary files is the judge.

Commands are put together at random and all run, as if they had been allowed. Then no canary that is
denied to Read may be in the output, or in any other file; none that is denied to Edit may have changed;
and nothing may be new at a path that is denied to Edit. ``python -m tests.permissions.fuzz_sandbox``
prints each finding and exits 1 when there was one.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from runner.core.sandbox import Sandbox
from runner.permissions import ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import Policy, may_touch
from runner.ports import Command, Interrupt, Surroundings
from runner.tools.sandbox import Sandboxes
from runner.tools.toolbox import LocalTools
from tests.permissions.fuzz import asked_for

_FILES = """
.env a.txt b.lock secrets/k secrets/deep/k config/dev.env config/prod.key src/a.py src/.env src/deep/.env
src/deep/x/y.lock docs/read.md .Env SECRETS/k vendor/lib/secrets/k with\u00a0blank/k -f 'q' build/out.txt
"""
FILES = re.split("[ \n]+", _FILES.strip())
LINKS = {
    "here": "/proc/self/cwd",
    "up": "..",
    "s": "secrets",
    "to": "config/prod.key",
    "d": "src/deep",
}
_PATTERNS = """
.env *.env /secrets/** secrets/ *.key config/*.key /src/** src/deep/** *.lock b.lock **/k docs /config
s/** to d/.env s*/k ./a.txt *.py /vendor/*/secrets vendor/**/k build -f
"""
PATTERNS = _PATTERNS.split()
SPELLINGS = (
    *("{}", "./{}", "$PWD/{}", "/proc/self/cwd/{}", "here/{}", "/dev/fd/../cwd/{}", "src/../{}"),
    *(
        "{}*",
        "/proc/self/root$PWD/{}",
        "here/here/{}",
        "[!z]{}",
        "*",
        "*/*",
        "../$(basename $PWD)/{}",
    ),
)
_COMMANDS = r"""
cat {a}
cat < {a}
head -c 99 {a} {b}
grep -r canary {a}
grep -rs canary .
cat {a} > {b}
echo x > {a}
echo x >> {a}
tee {a} < {b}
cp {a} {b}
cp -r {a} {b}
cp -a . /tmp/all
mv {a} {b}
mv -f {a} new
mv new {a}
ln {a} new
ln -s {a} new
ln -sfn $PWD {a}
rm -rf {a}
rmdir {a}
mkdir -p {a}
mkdir -p new/{b}
touch {a}
touch {a}.lock .env.env
chmod 777 {a}
chmod -R 000 {a}
chmod 755 {a}
truncate -s 0 {a}
sed -i s/c/x/ {a}
tar cf t.tar . && mkdir -p new && tar xf t.tar -C new
tar cf - {a} | tar xOf -
dd if={a} of={b} status=none
find . -name k -exec cat {{}} +
find {a} -delete
python3 -c 'print(open("{a}").read())'
python3 -c 'import os; os.rename("{a}", "{b}")'
git init -q . && git add -Af {a} && git diff --cached
git mv {a} {b}
git checkout -- {a}
cd {a} && cat k .env
cd {a} && echo x > k
cd src; cd ..
install {a} {b}
umount {a}
mount --bind {a} {b}
unshare -rm cat {a}
exec 5<{a}; cat <&5
while read l; do echo $l; done < {a}
for f in *; do cat $f; done
sort -o {a} {b}
awk 1 {a}
split -b 9 {a} new
(sleep 0.05; cat {a}) & wait
"""
COMMANDS = _COMMANDS.strip().splitlines()


def rules_of(dice: random.Random) -> tuple[Rule, ...]:
    """A few denials."""
    names = dice.choices(("Read", "Edit"), k=dice.randint(1, 5))
    return tuple(Rule("deny", f"{name}({dice.choice(PATTERNS)})") for name in names)


def command_of(dice: random.Random) -> str:
    """A command of a few parts."""

    def path() -> str:
        name = dice.choice((*FILES, *LINKS, "secrets", "src", "config", "src/deep", "new"))
        return dice.choice(SPELLINGS).format(name)

    parts = (dice.choice(COMMANDS).format(a=path(), b=path()) for _ in range(dice.randint(1, 5)))
    return "".join(part + dice.choice((";", "\n", " && ", " || ")) for part in parts) + " true"


@dataclass
class Judge:
    """A tree of canaries, and what commands do to it.

    ``blind``: the sandbox is told no rules, to see that findings are found.
    """

    folder: Path
    tools: LocalTools
    blind: bool = False
    seen: int = field(default=0, init=False)  # allowed canaries that commands showed
    changed: int = field(default=0, init=False)  # allowed canaries that commands changed

    def look(self, command: str, rules: Sequence[Rule]) -> str:
        """Run a command; return what it did against the rules, "" if nothing."""
        workspace = self.folder / "home" / "workspaces" / "run_1"
        shutil.rmtree(workspace, ignore_errors=True)
        canaries = plant(workspace)
        links = {str(workspace / name): target for name, target in LINKS.items()}
        policy = Policy((*rules, Rule("allow", "Read"), Rule("allow", "Edit")))
        denied = {
            tool: {path for path in canaries if is_denied(policy, tool, path, workspace)}
            for tool in ("Read", "Edit")
        }
        surroundings = Surroundings(workspace, self.folder / "home" / "outputs" / "run_1")
        told = Policy() if self.blind else policy
        call = Command("c", "run_1", command, surroundings, 20, Sandbox("required"), told)
        result = self.tools.command(call, Interrupt())
        said = (result.output or b"").decode("utf-8", "replace") + result.content
        after = contents(workspace) | contents(self.folder / "home" / "tmp" / "run_1")
        shutil.rmtree(self.folder / "home" / "tmp" / "run_1", ignore_errors=True)
        for path, canary in canaries.items():
            elsewhere = [name for name, text in after.items() if canary in text and name != path]
            shown = canary in said or bool(elsewhere)
            if path in denied["Read"] and shown:
                return f"{path} was read: {elsewhere[:1] or 'in the output'}"
            is_changed = after.get(path) != canary
            if path in denied["Edit"] and is_changed:
                return f"{path} was changed: {after.get(path)!r}"
            self.seen, self.changed = self.seen + shown, self.changed + is_changed
        for path in after:
            new = path.startswith(f"{workspace}/") and path not in canaries and path not in links
            if new and may_deny(policy, "Edit", path, workspace):
                return f"{path} was made"
        for path, target in links.items():
            is_same = Path(path).is_symlink() and os.readlink(path) == target  # noqa: PTH115
            if not is_same and may_deny(policy, "Edit", path, workspace):
                return f"the link {path} was changed"
        return ""


def plant(workspace: Path) -> dict[str, str]:
    """Make the tree; return the canaries by their paths."""
    canaries = {}
    for number, name in enumerate(FILES):
        file = workspace / name
        file.parent.mkdir(parents=True, exist_ok=True)
        canaries[str(file)] = f"canary-{number}-{random.getrandbits(64):016x}\n"
        file.write_text(canaries[str(file)])
    for name, target in LINKS.items():
        (workspace / name).symlink_to(target)
    return canaries


def contents(folder: Path) -> dict[str, str]:
    """The files below a folder with what is in them; links and folders with nothing."""
    found = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(here, name)  # noqa: PTH118 - as os.walk names it
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, 0o755)  # noqa: PTH101 - commands take permissions away
        for name in (*files, *(each for each in folders if Path(here, each).is_symlink())):
            file = Path(here, name)
            regular = file.is_file() and not file.is_symlink()
            found[str(file)] = file.read_text(errors="replace") if regular else ""
    return found


def is_denied(policy: Policy, tool: str, path: str, workspace: Path) -> bool:
    """True if the rules deny a file by its own name, or by that of a link of the tree to it."""
    names = [path]
    for name, target in LINKS.items():
        real = os.path.normpath(workspace / target)
        if name in ("s", "to", "d") and (path == real or path.startswith(f"{real}/")):
            names.append(str(workspace / name) + path[len(real) :])
    return any(may_deny(policy, tool, each, workspace, path) for each in names)


def may_deny(
    policy: Policy, tool: str, path: str, workspace: Path, real: str | None = None
) -> bool:
    """True if the rules deny a path."""
    context = ToolContext(str(workspace), home=str(Path.home()))
    return may_touch(policy, tool, ResolvedPath(path, real or path), context).effect == "deny"


def main() -> int:
    """Fuzz for the given time; print every finding as Python strings."""
    seconds, seed = asked_for()
    dice, tried, findings = random.Random(seed), 0, 0
    found = Sandboxes(Path("/nowhere"), os.environ).probe()
    if found.kind != "bubblewrap":
        print(f"not tried in the sandbox: {found.missing}", file=sys.stderr)
        return 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        os.chdir(place)  # links into /proc lead this process here
        with closing(LocalTools(place / "home", place / "locks")) as tools:
            judge = Judge(place, tools)
            while time.monotonic() < end:
                rules, command = rules_of(dice), command_of(dice)
                tried += 1
                if wrong := judge.look(command, rules):
                    findings += 1
                    print(f"{wrong}: {command!r} {[rule.text for rule in rules]}", flush=True)
    said = f"{judge.seen} allowed canaries shown and {judge.changed} changed"
    print(f"{tried} commands, {said}, {findings} findings (seed {seed})", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
