"""The command line of bubblewrap for a call: what its processes see of this machine, and may write.

    /                    read-only, with a /tmp of its own and nothing in /run
    the workspace        writable, and so is its repository; git's hooks and settings are read-only
    what rules deny      Read: unreadable, Edit: read-only, by whatever name it is reached
    RUNNER_HOME          empty, but for the run's own workspace, repository and outputs
    credentials at home  unreadable

In a container of an image there is nothing of this machine but the workspace, its repository and outputs.
https://github.com/containers/bubblewrap. Mounts are made in the order of their paths, so that what is
further down stands over what it lies in. No path given to bubblewrap has a symlink in it.
"""

# ruff: noqa: PTH102, PTH110, PTH111, PTH112, PTH113, PTH114, PTH115, PTH118, PTH119, PTH120, PTH208

from __future__ import annotations

import os
import platform
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from runner.core.sandbox import CACHES, Kind
from runner.errors import HostFaultError
from runner.permissions.decisions import Policy
from runner.tools import sandbox_caches
from runner.tools.file_access import ToolFailure, inside, open_folder
from runner.tools.sandbox_denials import Denied, denials_of
from runner.tools.sandbox_landlock import HIDDEN, folders_above, grants
from runner.tools.sandbox_seccomp import seccomp_program

SECCOMP_DESCRIPTOR = 100  # that bubblewrap reads its filter from
FOLDER = "sandbox"  # of RUNNER_HOME
TMP = "tmp"  # the folder of RUNNER_HOME with the /tmp of each run
MOST_DENIED = 200  # mounts for denied paths: each takes longer than the one before

# fmt: off
# Files and folders of a home that are or hold credentials, or what others have typed or seen.
_CREDENTIALS = (
    ".ssh", ".gnupg", ".pki", ".password-store", ".netrc", "_netrc", ".authinfo", ".authinfo.gpg",
    ".local/share/keyrings", ".local/share/kwalletd", ".config/op", ".config/Bitwarden", ".config/rbw",
    ".vault-token", ".config/sops", ".config/age", ".Xauthority", ".ICEauthority",
    # clouds, clusters, registries of images
    ".aws", ".azure", ".config/gcloud", ".boto", ".s3cfg", ".oci", ".bluemix", ".config/doctl", ".fly",
    ".config/rclone", ".kube", ".docker", ".config/containers", ".colima", ".lima", ".terraformrc",
    ".terraform.d/credentials.tfrc.json", ".databrickscfg", ".snowflake", ".config/heroku",
    # code forges and agents
    ".git-credentials", ".config/git/credentials", ".config/gh", ".config/glab-cli", ".config/hub",
    ".config/github-copilot", ".claude", ".claude.json", ".config/claude", ".config/anthropic",
    ".codex", ".gemini", ".subversion/auth", ".config/Code", ".config/Cursor", ".vscode-server",
    # package registries
    ".npmrc", ".yarnrc.yml", ".pypirc", ".config/pip", ".pip", ".cargo/credentials",
    ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml", ".m2/settings-security.xml",
    ".gradle/gradle.properties", ".composer/auth.json", ".config/composer/auth.json",
    ".nuget/NuGet/NuGet.Config", ".config/NuGet/NuGet.Config", ".config/hatch",
    # data and models
    ".pgpass", ".my.cnf", ".mylogin.cnf", ".kaggle", ".huggingface", ".cache/huggingface/token",
    # browsers, mail, chat, wallets
    ".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/vivaldi",
    ".config/BraveSoftware", ".config/microsoft-edge", ".config/opera", ".var/app", "snap",
    ".config/Signal", ".config/Slack", ".config/discord", ".config/evolution", ".bitcoin", ".ethereum",
    ".electrum", ".config/solana", "Library/Keychains", "Library/Cookies",
    # histories
    ".bash_history", ".zsh_history", ".python_history", ".node_repl_history", ".psql_history",
    ".mysql_history", ".sqlite_history", ".local/share/fish", ".viminfo", ".lesshst",
)
# Variables with the paths of files or folders that are credentials of Bedrock and Vertex AI.
_CREDENTIAL_PATHS = (
    "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS",
)
# Files that only root can read, even without any capability.
_CREDENTIALS_OF_ROOT = (
    "/etc/shadow", "/etc/shadow-", "/etc/ssl/private", "/etc/krb5.keytab", "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key", "/etc/ssh/ssh_host_ed25519_key",
)
# Sockets of other programs of this user's; a read-only mount does not keep anyone from a socket.
_WITHHELD_VARIABLES = (
    "SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST",
    "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "TMUX", "VSCODE_IPC_HOOK_CLI",
)
NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
    "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
)
# fmt: on
_TMP = "/tmp"  # another one for each run
_DEV = "/dev"  # a sandbox has its own
_EMPTY = ("/run", "/var/run")
# The files of a repository that git runs, takes settings from or follows to elsewhere.
_STEERING = ("hooks", "config", "config.worktree", "modules", "objects/info/alternates")
_WORKSPACES = "workspaces"  # as runner.workspace.folders names it; a test compares
_LARGEST_LINK = 8_192
_CLOCK_STEP_NS = 50_000_000  # a file's time may be that of the last tick

# "hide": nothing is there; "deny": nothing is there, nor anything of it elsewhere in the plan;
# "pin": writable, and cannot be renamed.
_Kind = Literal["read", "write", "pin", "private", "hide", "deny"]


@dataclass(frozen=True, slots=True)
class View:
    """The files that a call's processes see."""

    home: Path  # RUNNER_HOME
    workspace: Path | None
    outputs: Path  # the run's
    readable: tuple[Path, ...] = ()  # wherever they are
    read_only: tuple[Path, ...] = ()  # where they can be seen: the job file
    caches: tuple[str, ...] = ()  # presets, of the home
    copies: Mapping[str, Path] = field(default_factory=dict)  # of presets, to write


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of a sandbox."""

    target: str
    source: str | None  # None: a new, empty file system in memory
    writable: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """As arguments of bubblewrap."""
        if self.source is None:
            return ("--tmpfs", self.target)
        return ("--bind" if self.writable else "--ro-bind", self.source, self.target)


@dataclass(frozen=True, slots=True)
class Blanks:
    """Files in RUNNER_HOME that sandboxes are made with."""

    file: str  # nobody can read it
    folder: str
    seccomp: str | None  # the filter; None if there is none for this machine

    @classmethod
    def make(cls, home: Path) -> Blanks:
        """Make them where they are missing. Raises ``HostFaultError`` if they cannot be made."""
        folder, program = home / FOLDER, _filter()
        seccomp = folder / f"seccomp-{zlib.crc32(program):08x}"
        blanks = cls(
            str(folder / "file"), str(folder / "folder"), str(seccomp) if program else None
        )
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)  # not what it is in: a home that is gone stays gone
            if not os.path.lexists(blanks.file):
                with suppress(FileExistsError):
                    os.close(os.open(blanks.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0))
            if not os.path.lexists(blanks.folder):
                with suppress(FileExistsError):
                    os.mkdir(blanks.folder, 0)
            if program and not os.path.lexists(seccomp):
                draft = folder / f"draft-{secrets.token_hex(8)}"
                draft.write_bytes(program)
                draft.replace(seccomp)
        except OSError as error:
            raise HostFaultError(f"cannot make {folder} for sandboxes: {error}") from error
        return blanks


@cache
def _filter() -> bytes:
    return seccomp_program(platform.machine()) or b""


def run_tmp(home: Path, run_id: str) -> Path:
    """Return the folder that is a run's /tmp; it is made if need be. Raises ``HostFaultError``."""
    folder = home / TMP / run_id
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise HostFaultError(f"cannot make {folder} for sandboxes: {error}") from error
    return folder


class Mounts:
    """The mounts of a call.

    Args:
        environment: of the call's processes.
        tmp: an existing folder that is the run's /tmp; None: each call has a new one.
        kind: Landlock cannot hold what is denied or hidden in a writable folder; a container has a root of
            its own.

    Raises:
        ToolFailure: the rules deny more than can be mounted, or all of the workspace.
    """

    _commondir = ""  # the file that would lead git to other settings; "": none

    def __init__(
        self,
        view: View,
        policy: Policy,
        blanks: Blanks,
        environment: Mapping[str, str],
        tmp: Path | None = None,
        kind: Kind = "bubblewrap",
    ) -> None:
        user = os.path.realpath(environment.get("HOME") or os.path.expanduser("~"))
        self._workspace = None if view.workspace is None else os.path.realpath(view.workspace)
        self._home = os.path.realpath(view.home)
        self._denials = denials_of(policy, self._workspace, user)
        self._plan: dict[str, _Kind] = {}
        # Rules about files outside of the workspace that are too many to look for.
        self.unheld: tuple[str, ...] = ()
        self.unheld_inside: tuple[str, ...] = ()  # in the workspace
        is_container = kind in ("docker", "podman")
        self._add_view(view, user, is_container=is_container)
        below = self._denied_below()
        writable = not any(each.path == self._workspace and each.writing for each in below)
        if kind == "landlock" and writable:
            self.unheld_inside = tuple(sorted({each.rule for each in below if each.rule}))
            self._add_denied(())
        else:
            self._add_denied(below)
        if is_container:
            self.unheld = ()  # nothing of theirs is mounted
        self._before = self._unmakeable(below if self._is_recorded else ())
        self._plan = needed = _needed(self._plan)
        self._started = time.time_ns() - _CLOCK_STEP_NS
        seccomp = () if blanks.seccomp is None else ("--seccomp", str(SECCOMP_DESCRIPTOR))
        # Files that bubblewrap reads from, by their descriptors.
        self.descriptors = {} if blanks.seccomp is None else {SECCOMP_DESCRIPTOR: blanks.seccomp}
        self.mounts = tuple(_mounts(needed, blanks, tmp))  # a folder before what is in it
        # Arguments of bubblewrap, before its command.
        words = (word for mount in self.mounts for word in mount.words)
        self.arguments = (*NAMESPACES, *seccomp, *words)
        # Variables of its command; a variable that is None is unset.
        here = str(tmp) if kind == "landlock" and tmp is not None else _TMP
        self.variables = _variables(environment, view, here)
        self.grants = grants(needed, here) if kind == "landlock" else []
        self.exposed = any(  # what is hidden, and can be read all the same
            kind == "landlock" and _kind_at(needed, os.path.dirname(path)) in ("write", "pin")
            for path, each in needed.items()
            if each in HIDDEN
        )
        top = self._workspace or ""
        # Where somebody may put a link in the place of a folder before it is mounted on.
        self.movable = [path for path in needed if top and path != top and inside(path, top)]

    def _add_view(self, view: View, user: str, *, is_container: bool) -> None:
        """Plan all but what rules deny; ``user`` is the home folder of the worker's user."""
        if is_container:
            self._plan["/"] = "hide"
        else:
            self._add("read", ["/etc/resolv.conf"])  # often a link into /run
        self._add("private", [_TMP])
        self._add("hide", (_DEV, *_EMPTY))
        self._add("hide", _credentials(user))
        if os.geteuid() == 0:
            self._add("hide", _CREDENTIALS_OF_ROOT)
        self._add("hide", [self._home])
        caches = (os.path.join(user, path) for name in view.caches for path in CACHES[name])
        self._add("read", (*map(str, (*view.readable, view.outputs)), *caches))
        self._add("write", map(str, view.copies.values()))
        if self._workspace is not None:
            self._add("write", [self._workspace])
            self._add_repository(self._workspace)
        files = (os.path.realpath(path) for path in view.read_only)
        self._add("read", (path for path in files if _kind_at(self._plan, path) not in HIDDEN))

    def remove_denied(self) -> str:
        """Remove what the call made at paths that rules deny to Edit, in a workspace that is recorded,
        and what would lead git to other settings; put denied links back. Return what that was, for
        the model; nothing if there was none. Another call may have made it at the same time: it is
        removed all the same. Nothing outside of the workspace and its repository is touched."""
        # In a folder that is not this run's own, somebody else may have made it.
        after = self._unmakeable(self._denied_below(writing=True) if self._is_recorded else ())
        # Nothing can have been made in a folder that was hidden; it was not searched before.
        made = [path for path in after if path not in self._before]
        made = [path for path in made if _kind_at(self._plan, path) != "deny"]
        moved = [path for path, link in self._before.items() if link != after.get(path, link)]
        moved += [path for path, link in self._before.items() if link and path not in after]
        for path in (*made, *moved):
            _remove(path, self._before.get(path, ""), self._started)
        if not made and not moved:
            return ""
        names = ", ".join(
            sorted(os.path.relpath(each, self._workspace) for each in (*made, *moved))
        )
        return f"the command made what the rules deny to Edit, and it was removed again: {names}"

    def _unmakeable(self, below: Iterable[Denied]) -> dict[str, str]:
        """Return the paths that exist now and that no command may make, with where they lead if they
        are links."""
        found = {}
        for each in below:
            if each.writing and inside(each.path, self._workspace or "/"):
                with suppress(OSError):
                    found[each.path] = os.readlink(each.path) if each.is_link else ""
        if self._commondir and os.path.lexists(self._commondir):
            found[self._commondir] = ""
        return found

    def _add(self, kind: _Kind, paths: Iterable[str]) -> None:
        for path in filter(os.path.lexists, paths):
            with suppress(OSError):  # it leads to nothing
                self._plan[os.path.realpath(path, strict=True)] = kind

    def _add_repository(self, workspace: str) -> None:
        """Make the workspace's repository writable, but for what git runs or is steered by, and what it
        borrows readable. A file ``.git`` is believed only where no command can have made what it
        names: in RUNNER_HOME, or where git says the same from the other side."""
        git = os.path.join(workspace, ".git")
        own = os.path.join(os.path.dirname(workspace), f".{os.path.basename(workspace)}.git")
        real = os.path.realpath(git)
        repository = worktree = None
        if os.path.isdir(own) and not os.path.islink(own) and self._is_recorded:
            repository = own
        elif os.path.isdir(git) and inside(real, workspace):
            repository = real
        elif os.path.isfile(git):
            repository, worktree = _linked_worktree(git)
        if os.path.isfile(git):
            self._add("read", [git])
        if repository is None:
            return
        self._plan[repository] = "pin"
        self._commondir = os.path.join(repository, "commondir")
        with suppress(OSError):
            os.mkdir(os.path.join(repository, "hooks"))  # else a command could
        self._add("read", (os.path.join(repository, name) for name in _STEERING))
        others = os.path.join(repository, "worktrees")
        with suppress(OSError):
            self._add("read", (os.path.join(others, name) for name in os.listdir(others)))
        if worktree is not None:
            self._plan |= {others: "pin", worktree: "pin"}
            self._add("read", (os.path.join(worktree, name) for name in ("commondir", "gitdir")))
        for borrowed in _alternates(os.path.join(repository, "objects")):
            above = os.path.dirname(borrowed)
            self._add("read", [borrowed, *(os.path.join(above, name) for name in _STEERING[:2])])

    @property
    def _is_recorded(self) -> bool:
        workspaces = os.path.join(self._home, _WORKSPACES)
        return self._workspace is not None and os.path.dirname(self._workspace) == workspaces

    def _denied_below(self, *, writing: bool = False) -> list[Denied]:
        if self._workspace is None or not self._denials:
            return []
        return self._denials.below(self._workspace, self._home, writing=writing)

    def _add_denied(self, below: Sequence[Denied]) -> None:
        workspace = self._workspace or "/"
        elsewhere, unheld = self._denials.elsewhere(workspace)
        self.unheld = tuple(unheld)
        pinned: set[str] = set()
        for each in (*elsewhere, *below):
            # The search returns real folders: only the last name may be a link.
            path = os.path.realpath(each.path) if each.is_link else each.path
            if each.reading and inside(workspace, path) and not each.is_link:
                raise ToolFailure(
                    f"no command can run: the rule deny {each.rule!r} hides the workspace", "denied"
                )
            if not os.path.exists(path) or (inside(workspace, path) and each.is_link):
                continue
            if self._plan.get(path) not in HIDDEN:
                self._plan[path] = "deny" if each.reading else "read"
            if inside(path, workspace):
                pinned.update(folder for folder in folders_above(path) if inside(folder, workspace))
        for path in pinned - {workspace}:
            self._plan.setdefault(path, "pin")
        if len(below) + len(elsewhere) + len(pinned) > MOST_DENIED:
            raise ToolFailure(
                f"no command can run: the rules deny {len(below) + len(elsewhere):,} paths, too many to "
                f"keep each from it ({below[0].path if below else elsewhere[0].path} is one); deny "
                "the folders that they are in",
                "denied",
            )


def _credentials(user: str) -> Iterator[str]:
    """Yield the paths of credentials that a home may have, or that the worker's environment names."""
    for path in map(os.environ.get, _CREDENTIAL_PATHS):
        if path and (os.path.isfile(path) or os.path.isdir(path)):  # not /dev/null
            yield path
    try:
        present = frozenset(os.listdir(user))
    except OSError:
        return
    for name in _CREDENTIALS:
        if name.partition("/")[0] in present:
            yield os.path.join(user, name)


def _linked_worktree(git: str) -> tuple[str | None, str | None]:
    """Return the repository that a linked worktree belongs to, and git's folder for it there; None if
    it is none (https://git-scm.com/docs/gitrepository-layout)."""
    folder = os.path.realpath(_content(git).removeprefix("gitdir:").strip() or git)
    above, name = os.path.split(os.path.dirname(folder))
    is_linked = _content(os.path.join(folder, "gitdir")).strip() == git
    if not is_linked or name != "worktrees" or inside(folder, os.path.dirname(git)):
        return None, None
    return above, folder


def _alternates(objects: str, depth: int = 5) -> Iterator[str]:
    """Yield the folders that objects are borrowed from (https://git-scm.com/docs/gitrepository-layout)."""
    for line in _content(os.path.join(objects, "info", "alternates")).splitlines():
        path = os.path.join(objects, line.strip().strip('"'))
        if line.strip() and not line.startswith("#") and depth and os.path.isdir(path):
            yield path
            yield from _alternates(path, depth - 1)


def _content(path: str) -> str:
    """Return the beginning of a small file, nothing if it cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            return file.read(_LARGEST_LINK)
    except (OSError, ValueError):
        return ""


def _kind_at(plan: Mapping[str, _Kind], path: str) -> _Kind:
    """Return the kind of the plan's entry that a path is in."""
    return next((plan[each] for each in (path, *folders_above(path)) if each in plan), "read")


def _remove(path: str, link: str, since: int) -> None:
    """Remove a file or folder that was made or moved there since a time, by the folder that it is in,
    so that no link is followed which somebody puts on the way meanwhile; put a link back in its
    place, if there was one."""
    folder, name = os.path.split(path)
    with suppress(OSError, ToolFailure):
        descriptor = open_folder(folder, folder)
        try:
            with suppress(OSError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if status.st_ctime_ns < since:
                    return
                if stat.S_ISDIR(status.st_mode):
                    shutil.rmtree(name, dir_fd=descriptor)
                else:
                    os.unlink(name, dir_fd=descriptor)
            if link:
                os.symlink(link, name, dir_fd=descriptor)
        finally:
            os.close(descriptor)


def _needed(plan: Mapping[str, _Kind]) -> dict[str, _Kind]:
    """Return the plan in the order of its paths, without what changes nothing."""
    kept: dict[str, _Kind] = {}
    for path in sorted(plan, key=lambda path: path.split("/")):
        kind, above = plan[path], _kind_at(kept, os.path.dirname(path))
        nothing_there = above == "deny" or (kind in HIDDEN and above in HIDDEN and path != _TMP)
        fixed = (kind, above) == ("pin", "read") or (kind == above and kind != "pin")
        if not nothing_there and not fixed:
            kept[path] = kind
    return kept


def _mounts(kept: Mapping[str, _Kind], blanks: Blanks, tmp: Path | None) -> Iterator[Mount]:
    """Yield a plan's mounts."""
    parents = {
        above
        for path in kept
        for above in folders_above(path)
        if kept.get(above) in ("hide", "private")
    }
    for path, kind in kept.items():
        match kind:
            case "read":
                yield Mount(path, path)
            case "write" | "pin":
                yield Mount(path, path, writable=True)
            case "private":
                # A mount below it would be made in the folder, where a link may lie in wait.
                is_kept = tmp is not None and path == _TMP and path not in parents
                yield Mount(path, str(tmp) if is_kept else None, writable=True)
            case "hide" if path in ("/", _DEV):  # bubblewrap's, or those of the image
                continue
            case "hide" if path in parents or path in _EMPTY:
                yield Mount(path, None)
            case _:
                yield Mount(path, blanks.folder if os.path.isdir(path) else blanks.file)


def _variables(environment: Mapping[str, str], view: View, tmp: str) -> dict[str, str | None]:
    """Return changes of the environment: nothing in it leads to what is not there."""
    found: dict[str, str | None] = dict.fromkeys(_WITHHELD_VARIABLES)
    found |= {name: tmp for name in ("TMPDIR", "TMP", "TEMP") if name in environment or tmp != _TMP}
    return found | dict(sandbox_caches.variables(view.caches, view.copies, tmp))
