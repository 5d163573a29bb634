"""The caches of build tools in a sandbox: the home's, the run's own in /tmp, or a copy that a job may
change, in a folder of RUNNER_HOME for each job. The first call of a job on a host makes the copy."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from runner.core.sandbox import CACHES
from runner.errors import HostFaultError

FOLDER = "caches"  # of RUNNER_HOME, with a folder for each job

# The variables that lead a tool to another cache than the home's; %s is its folder.
_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "cargo": {"CARGO_HOME": "%s"},
    "go": {"GOMODCACHE": "%s/mod", "GOCACHE": "%s/build"},
    "gradle": {"GRADLE_USER_HOME": "%s"},
    "maven": {"MAVEN_ARGS": "-Dmaven.repo.local=%s"},
    "npm": {"npm_config_cache": "%s"},
    "pip": {"PIP_CACHE_DIR": "%s"},
    "uv": {"UV_CACHE_DIR": "%s"},
    "yarn": {"YARN_CACHE_FOLDER": "%s"},
}


def variables(
    read: Collection[str], copies: Mapping[str, Path], tmp: str
) -> Iterator[tuple[str, str]]:
    """Yield the variables that tell programs where their caches are. A preset in ``copies`` has the
    folder given there, one in ``read`` stays in the user's home, every other is in ``tmp``."""
    for preset, of_preset in _VARIABLES.items():
        folder = copies.get(preset, f"{tmp}/.cache/{preset}")
        for name, value in of_preset.items():
            # Without one that it can write, go does not build.
            if preset in copies or preset not in read or name == "GOCACHE":
                yield name, value % folder


def writable_copy(preset: str, user: Path, folder: Path) -> Path:
    """Return a job's copy of a preset; it is made if need be, which can take long. Raises
    ``HostFaultError``.

    Args:
        user: the home with the caches.
        folder: the job's.
    """
    copy, draft = folder / preset, folder / f"draft-{secrets.token_hex(8)}"
    if copy.is_dir():
        return copy
    try:
        draft.mkdir(parents=True, mode=0o700)
        for path, place in CACHES[preset].items():
            (draft / place).mkdir(exist_ok=True)
            if (user / path).is_dir():
                command = ["cp", "-a", "--reflink=auto", f"{user / path}/.", str(draft / place)]
                subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        with suppress(FileExistsError, IsADirectoryError):
            draft.replace(copy)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise HostFaultError(f"cannot copy the cache of {preset} for the job: {said}") from error
    except OSError as error:
        if not copy.is_dir():  # nobody else has made it meanwhile
            raise HostFaultError(
                f"cannot copy the cache of {preset} for the job: {error}"
            ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return copy
