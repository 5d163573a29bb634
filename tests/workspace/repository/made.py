"""Real repositories, made for tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_PERSON = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


class Made:
    """A repository in a folder, with a person's checkout."""

    def __init__(self, path: Path, environment: Mapping[str, str], *options: str) -> None:
        self.path = path
        self.environment = {**environment, **_PERSON}
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main", *options)

    def git(self, *arguments: str, given: str = "") -> str:
        """What a git command of that person prints."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout.removesuffix("\n")

    def write(self, name: str, text: str | bytes = "text\n") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def commit(self, **files: str) -> str:
        """A commit of all that is there, and of these files; its id."""
        for name, text in files.items():
            self.write(name.replace("__", "."), text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "work")
        return self.git("rev-parse", "HEAD")

    def state(self) -> dict[str, object]:
        """Everything of it that a user would see change."""
        listed = sorted(path for path in self.path.rglob("*") if ".git" not in path.parts)
        index = self.path / ".git/index"
        return {
            "refs": self.git("for-each-ref"),
            "head": (self.path / ".git/HEAD").read_bytes(),
            "index": index.read_bytes() if index.exists() else None,
            "config": (self.path / ".git/config").read_bytes(),
            "files": [
                (str(path), os.lstat(path).st_mtime_ns, path.read_bytes())
                for path in listed
                if path.is_file() and not path.is_symlink()
            ],
            "git": sorted(
                str(path)
                for path in (self.path / ".git").rglob("*")
                if "objects" not in path.parts and path.is_file()
            ),
        }
