"""What no pattern may allow: scripts that hide what they run."""

from __future__ import annotations

import subprocess

import pytest

from runner.permissions.shell import analyse

ILLEGIBLE = [
    "echo \"${z:-'$(rm)'}\"", "cat <<E\n${z:-'$(rm)'}\nE\n", "declare -a x; declare x='($(rm))'",
    "x=(1); local x=$y", "ls {PATH}> f", "cc 'a b'\\=\\'x", "x >| }\\4", "$cmd x", "${cmd} x",
    "{rm,-rf,x}", "r* x", "~/bin/x", "$'\\x72m' x", '$"rm" x', "$(echo rm) x", "`echo rm` x",
    "rm$IFS-rf", "r\\\nm x", "$0 x", "eval $x", "eval \"$x\"", "trap \"$x\" EXIT", "bash",
    "curl x | bash", "bash -s < f", "bash -c \"$x\"", "bash -c 'rm '$x", "sh -c '[[ a && rm b ]]'",
    "sh -c 'a &> b'", "source <(x)", "bash <(x)", "bash /dev/stdin", "xargs -I{} sh -c 'rm {}'",
    "xargs -I{} {} x", "echo ${x@P}", "echo ${!x}", "echo ${a[$(x)]}", "echo ${x:=y}",
    "[[ 'a[$(x)]' -eq 0 ]]", "[ -v 'a[$(x)]' ]", "test -v x", "[[ -v x ]]", "[[ $x -eq 0 ]]",
    "[ $x ]", "printf -v 'a[$(x)]' y", "printf $x", "let 'a[$(x)]=1'", "declare -n r=PATH",
    "declare -i x=y", "unset 'a[$(x)]'", "read 'a[$(x)]'", "echo $((x))", "echo $((a[$(x)]))",
    "((x++ + y))", "read n; echo $((n))", "a[$(x)]=1", "echo $[x]",
    "cat <<X\n`rm`\nX\n", "cat <<X\n$\\\n(rm)\nX\n", "echo \"$\\\n(rm)\"", "cat <<A <<B\nA\nB\n",
    "cat <<X\nx", "cat <<X\nx\nX y\n", "cat <<E\"O\"F\nx\nEOF\n", "cat < /dev/tcp/h/1",
    "x > /dev/udp/h/1", "alias ls=rm", "shopt -s expand_aliases", "hash -p x ls", "enable -f x y",
    "set -k", "set -a", "complete -C x y", "mapfile -C x a", "coproc x", "time { x; }",
    "{fd}> f x", "for PATH in x; do y; done", "export $x", "echo a\u00a0b", "echo \u202ex",
    "r\u200bm", "rm\r\nx", "rm\x00x", "\u0440m x", "echo \ud800", "env A.B=c rm", "env 'A B=c' rm",
    "echo x >& '$(rm)'", "x <<< `a \\`b\\``", "f() { :; ", "a &&", "case x in a) b ;& esac",
    "select", "x" * 20_001,
]  # fmt: skip


@pytest.mark.parametrize("command", ILLEGIBLE)
def test_what_cannot_be_read_is_unanalyzable(command: str) -> None:
    script = analyse(command)
    assert script.unanalyzable
    assert not script.complete


# The grammar reads them, bash does not.
REFUSED = [
    "ls ;; ls", "ls;;", "ls ;& ls", "(ls;; ls)", "f() { ls;; ls; }", "if ls;; then ls; fi", "ls;&> f",
    "{ \n}", "( )", "if ls; then\nfi", "while ls; do\ndone", "f() { \n}", "ls > 2>&1", "ls 2>2> f",
    "ls | ! ls", "ls <<E | ! ls\nE\n", "ls <<E | { ls\n}\nE\n", "A=1 time ( ls )", "ls | time ( ls )",
    "case x in x) ls esac", "case x in x) ls;; *) ls & ls esac", "[[ -f ]]", "[[ ! -n ]]", "[[ -f && a ]]",
    "[[ -f =~ a ]]", "[[ a == )) ]]", "[[ a =~ ^&+ ]]", "[[ a ={b ]]", "[[ a =~ \nb ]]", "[[! ( a ) ]]",
    "[[ a == ]] ]]", "[[ ( ]] ) || a ]]", "[[ a || b]]", "select i in= a; do ls; done",
    "for i in\n a; do ls; done",
]  # fmt: skip


@pytest.mark.parametrize("command", REFUSED)
def test_what_bash_refuses_is_unanalyzable(command: str) -> None:
    bash = ["bash", "-n", "-c", "--", command]
    assert subprocess.run(bash, capture_output=True, check=False).stderr
    assert not analyse(command).complete


HIDING = [
    "find . -execdir rm {} +", "find . -exec sh -c 'rm {}' \\;", "find . -exec rm \"$x\" {} +",
    "find . -delete", "find . -fprintf f x", "find . $x",
    "sort --compress-prog=x f", "sort --compress-program=x f", "rg --pre x y", "fd -x rm", "git -c a=b log",
    "git --exec-path=x log", "git -C ../x log", "git -C /x/../y log", "git -C \"$x\" log",
    "git ls-remote --upload-pa=x y", "git difftool",
    "git submodule foreach x", "git bisect run x", "git rebase --exec x", "git rebase -ix x",
    "git grep -Ox", "git config core.pager x", "git clone ext::x", "git diff --output=f", "git $x",
    "git log \"$x\"", "git fetch --upload-pack x", "tar --to-c=x xf a",
    "tar xf a --checkpoint-action=exec=x", "tar cIf x a", "tar cf x *", "rsync -e x a b",
    "sed 1e f", "sed s/a/b/e f", "sed 's/a/b/w f' g", "sed -f x y", "sed $x f",
    "awk 'BEGIN{system(\"x\")}'", "awk '{print > \"f\"}'", "awk '{print | \"x\"}'", "awk -f x",
    "man -P x y", "man --html=x y", "make SHELL=x", "make 'A=$(shell x)'", "make --eval x",
    "watch x", "sudo x", "doas x", "ssh h x", "su -c x", "parallel x", "vim x", "less +!x f",
    "zsh -c x", "busybox x", "script -c x", "strace x", "flock f x", "chroot d x", "env -S x",
    "env -C d x", "timeout --new 5 x", "nice -x y", "xargs --new x", "PATH=x ls",
    "LD_PRELOAD=x ls", "GIT_SSH_COMMAND=x git fetch", "export PATH=x", "PATH=x", "env PATH=x ls",
    "time PATH=x ls", "date -f x", "go test -exec x", "sqlite3 db '.shell x'", "tree -o f",
    "wget --execute=x", "split --filter=x f",
]  # fmt: skip


@pytest.mark.parametrize("command", HIDING)
def test_what_runs_its_arguments_is_only_for_rules_without_a_star(command: str) -> None:
    script = analyse(command)
    assert script.unanalyzable
    assert script.complete
    assert any(part.hides for part in script.parts)


PLAIN = [
    "echo $HOME *.py {a,b}", "find . -name '*.py' -newer x", "sort -t, -k2,2 f",
    "git log --oneline -5", "git add \"$f\"", "git push -u origin main",
    "git commit -m \"$(date)\"", "git config --get user.name", "tar xzf a.tgz -C d",
    "sed -n 1,5p f", "sed -i 's/a/b/g; s/c/d/' f", "awk -F: '$3 > 5 {print $1}' f",
    "make -j4 test", "date -Iseconds", "bash run.sh x", "source .venv/bin/activate",
    "python -c 'x'", "set -euo pipefail", "printf '%s' x", "read -r a b", "echo 日本語 🎉 — é",
    "export CI=1", "local_x=1", "unset x", "test -f x", "x=5; ((x > 3))", "[ \"$a\" = b ]",
    "a > /dev/null 2>&1", "exec > log", "cat <<'X'\n$(rm) `x`\nX\n", "echo \"it's $5\"",
    "npm run build -- --watch", "env", "xargs", "rg foo src", "echo a#b", "time (ls; ls) | cat",
    "for i in a \\\n b; do ls; done", "case $x in a) ls;; *) ls\nesac", "case $x in a) ls; esac",
    "[[ $x =~ ^(a|b)[0-9]+$ && ! -f f ]]", "[[ $x == *(a|b) || $x == a* ]]", "! time ls", "ls 12>&1",
]  # fmt: skip


@pytest.mark.parametrize("command", PLAIN)
def test_plain_commands_are_analyzable(command: str) -> None:
    assert analyse(command).unanalyzable == ""
