"""A patch as a mail: git gives back the message and every byte of the changes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runner.app.outputs import as_mail
from runner.workspace.diffs import CommitText

AT = 1_700_000_000.0
PATCH = b"""diff --git a/a.txt b/a.txt
new file mode 100644
index 0000000000000000000000000000000000000000..ce013625030ba8dba906f756967f9e9ca394464a
--- /dev/null
+++ b/a.txt
@@ -0,0 +1 @@
+hello
"""
TRAILERS = "Runner-Job: mend job_1\nRunner-Run: run_1"

words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40)
hostile = st.sampled_from(
    [
        "diff --git a/x b/x",
        "--- a/x",
        "---",
        "--- ",
        "Index: x",
        "From: Mallory <m@example.org>",
        "Subject: [PATCH] else",
        "Date: Mon, 1 Jan 2001 00:00:00 +0000",
        "From mallory Mon Sep 17 00:00:00 2001",
        ">From mallory Mon Sep 17 00:00:00 2001",
        "[PATCH] [x] y",
        "[x] y",
        "Re: [x]: y",
        "=?UTF-8?q?=41?=",
        "Content-Type: text/html; charset=UTF-16",
        "@@ -1 +1 @@",
        "",
    ]
)
messages = st.lists(st.one_of(words, hostile), min_size=1, max_size=6).map("\n".join)


def git(folder: Path, *arguments: str, given: bytes | None = None) -> bytes:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_COMMITTER_NAME": "Reviewer",
        "GIT_COMMITTER_EMAIL": "reviewer@example.org",
        "GIT_AUTHOR_NAME": "Reviewer",
        "GIT_AUTHOR_EMAIL": "reviewer@example.org",
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], input=given, capture_output=True, env=environment
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "begin")
    return folder


def meant(message: str) -> list[str]:
    """The lines that git keeps of a message, which are compared without blanks at their ends: they
    are indented where git would misunderstand them."""
    lines = message.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [line.strip() for line in lines if line.strip()]


def read_back(folder: Path, mail: bytes) -> tuple[dict[str, str], list[str], bytes]:
    """What git reads in a mail: its headers, the lines of the commit's message, and the patch."""
    (folder / "mails").mkdir(exist_ok=True)
    for each in (folder / "mails").iterdir():
        each.unlink()
    (folder / "mail").write_bytes(mail)
    count = git(folder, "mailsplit", f"-o{folder / 'mails'}", str(folder / "mail"))
    assert count.strip() == b"1", "it is one mail"
    told = git(folder, "mailinfo", "message", "patch", given=(folder / "mails/0001").read_bytes())
    headers = dict(line.split(": ", 1) for line in told.decode().strip().split("\n"))
    subject = headers.get("Subject", "")
    body = (folder / "message").read_bytes().decode()
    return headers, meant(f"{subject}\n\n{body}"), (folder / "patch").read_bytes()


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(message=messages)
@example(message="[x] Mend\n\nFrom: Mallory <m@example.org>")
@example(message="Mend\n\nFrom: Mallory <m@example.org>\n\nMore.")
@example(message="Mend\nit")
@example(message="Mend  the   gap")
@example(message="Mend\n\ndiff --git a/x b/x\n--- a/x\n+++ b/x")
def test_git_reads_any_message_as_it_is(tmp_path: Path, message: str) -> None:
    whole = f"{message}\n\n{TRAILERS}"
    mail = as_mail(CommitText("Ada", "ada@example.org", AT, whole), PATCH)
    headers, lines, patch = read_back(tmp_path, mail)
    assert lines == meant(whole)
    assert (headers["Author"], headers["Email"]) == ("Ada", "ada@example.org")
    assert patch == b"---\n\n" + PATCH


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("Ada Löwe", "Ada Löwe"),
        ('Ada "the first", Inc.', 'Ada "the first", Inc.'),
        ("Ada\nSubject: x", "Ada Subject: x"),
        ("Back \\ slash", "Back \\ slash"),
    ],
)
def test_git_reads_any_author(tmp_path: Path, name: str, read: str) -> None:
    mail = as_mail(CommitText(name, "ada@example.org", AT, "Mend it."), PATCH)
    headers, lines, _ = read_back(tmp_path, mail)
    assert (headers["Author"], headers["Email"]) == (read, "ada@example.org")
    assert headers["Date"] == "Tue, 14 Nov 2023 22:13:20 +0000"
    assert lines == ["Mend it."]


def change_everything(folder: Path) -> None:
    """Every kind of change that git knows, and every kind of line that mails are bad at."""
    (folder / "crlf.txt").write_bytes(b"one\r\n2\r\nthree\r\n")
    (folder / "mixed.txt").write_bytes(b"one\r\ntwo\nthree\r\r\nend")
    (folder / "latin.txt").write_bytes("grün\n".encode("latin-1") * 3)
    (folder / "binary.bin").write_bytes(bytes(range(256)) * 4)
    (folder / "late.txt").write_bytes(b"x\n" * 5000 + b"\x00 nul\n")
    (folder / "from.txt").write_text("From mallory Mon Sep 17 00:00:00 2001\n---\nFrom: x\n")
    (folder / "long.txt").write_text("é" * 5000 + "\n= =3D trailing \t \n")
    (folder / "empty").touch()
    (folder / "gone.txt").unlink()
    (folder / "tool.sh").chmod(0o755)
    (folder / "link").symlink_to("crlf.txt")
    (folder / 'sp ace "quoted" ünï').write_text("named\n")
    (folder / "line\nbreak").write_text("named\n")


@pytest.mark.parametrize("with_crlf", [True, False])
def test_git_am_makes_the_very_tree(repository: Path, with_crlf: bool) -> None:
    (repository / "gone.txt").write_text("gone\n")
    (repository / "tool.sh").write_text("#!/bin/sh\n")
    (repository / "crlf.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "base")
    change_everything(repository)
    if not with_crlf:
        git(repository, "checkout", "-q", "crlf.txt")
        (repository / "mixed.txt").unlink()
    git(repository, "add", "-A")
    tree = git(repository, "write-tree").decode().strip()
    patch = git(repository, "diff", "--cached", "--binary", "--full-index")
    git(repository, "reset", "-q", "--hard")
    mail = as_mail(CommitText("Ada", "ada@example.org", AT, f"Mend\n\n{TRAILERS}"), patch)
    assert (b"quoted-printable" in mail) is with_crlf
    (repository / ".git/it.patch").write_bytes(mail)
    git(repository, "am", "-q", ".git/it.patch")
    assert git(repository, "rev-parse", "HEAD^{tree}").decode().strip() == tree
    assert git(repository, "log", "-1", "--format=%an <%ae>%n%B").decode().strip() == (
        f"Ada <ada@example.org>\nMend\n\n{TRAILERS}"
    )
