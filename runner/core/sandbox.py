"""The sandbox that a job asks for: what surrounds the processes of its calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.core.network import HostPattern

SandboxMode = Literal["auto", "required", "off"]
# The containment of a call. "none": nothing contained it.
Kind = Literal["bubblewrap", "landlock", "docker", "podman", "none"]

# Folders of the home that hold the caches of build tools, by preset, and where they are in a copy.
CACHES: Mapping[str, Mapping[str, str]] = {
    "cargo": {".cargo/registry": "registry", ".cargo/git": "git"},
    "go": {"go/pkg/mod": "mod", ".cache/go-build": "build"},
    "gradle": {".gradle/caches": "caches"},
    "maven": {".m2/repository": "."},
    "npm": {".npm": "."},
    "pip": {".cache/pip": "."},
    "uv": {".cache/uv": "."},
    "yarn": {".cache/yarn": "."},
}


# Programs that reach other hosts; of some, only the subcommands named.
_REACHING: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("curl", "wget", "ssh", "scp", "sftp", "rsync", "gh", "glab", "npx", "docker"), ()
    ),
    **dict.fromkeys(("kubectl", "helm", "aws", "gcloud", "apt-get", "mvn", "gradle", "twine"), ()),
    **dict.fromkeys(("npm", "pnpm", "yarn"), ("install", "i", "ci", "add", "publish", "audit")),
    "git": ("push", "fetch", "pull", "clone", "ls-remote"),
    "pip": ("install", "download"),
    "uv": ("sync", "add", "pip", "lock"),
    "poetry": ("install", "add", "update", "publish"),
    "cargo": ("install", "fetch", "add", "update", "publish"),
    "go": ("get", "install", "mod"),
    "bundle": ("install", "update"),
    "gem": ("install", "push"),
    "composer": ("install", "update", "require"),
}
_IMAGE = re.compile(r"[A-Za-z0-9][\w.\-/:@]*")  # nothing that an engine takes for an option
_SEPARATORS = re.compile(r"[;&|\n()]+")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The section ``[sandbox]`` of a job file."""

    mode: SandboxMode = "auto"  # "required": only in bubblewrap; "auto": in what the host has
    network: tuple[str, ...] | None = ()  # patterns of hosts that can be reached; None: every one
    memory: int | None = None  # bytes of a call's processes together
    processes: int | None = None  # of a call, threads included
    cpu: float | None = None  # cores
    disk: int | None = None  # bytes of the workspace
    hooks: bool = False  # hooks run in it too
    caches: tuple[str, ...] = ()  # presets of ``CACHES`` that calls can read
    writable_caches: tuple[str, ...] = ()  # calls write to the job's own copy of these
    file: str | None = None  # the job file, which no call may change
    image: str | None = None  # that each call has a container of; no call runs without

    @property
    def is_on(self) -> bool:
        return self.mode != "off"

    @property
    def is_required(self) -> bool:
        """True if no call runs without it. An image has the programs that calls are to find."""
        return self.mode == "required" or self.image is not None


def host_problem(text: str) -> str | None:
    """Return why a text is no pattern of hosts, or None."""
    try:
        HostPattern.parse(text)
    except ValueError as error:
        return f"{error}; give one such as 'example.org', '*.example.com' or 'example.org:8443'"
    return None


def image_problem(text: str) -> str | None:
    """Return why a text names no image of a container, or None."""
    return None if _IMAGE.fullmatch(text) else "is not an image; give one such as 'python:3.12'"


def seems_to_reach(script: str) -> bool:
    """True if a script has a command that usually reaches another host. A guess, for a warning."""
    for command in _SEPARATORS.split(script):
        words = [word for word in command.split() if "=" not in word]
        if words[1:3] == ["-m", "pip"]:
            words = words[2:]
        program = words[0].rpartition("/")[2].replace("pip3", "pip") if words else ""
        actions = _REACHING.get(program)
        if actions is not None and (not actions or any(word in actions for word in words[1:3])):
            return True
    return False
