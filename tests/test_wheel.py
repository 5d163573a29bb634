"""The wheel has everything that Runner needs: an environment with only it and the libraries works."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

SOURCE = Path(__file__).parents[1]
PACKAGED = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "runner", "migrations")


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the source, which a build would leave files in."""
    copy = folder / "source"
    copy.mkdir()
    for name in PACKAGED:
        if (SOURCE / name).is_dir():
            shutil.copytree(
                SOURCE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(SOURCE / name, copy)
    pip(folder, "wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(copy))
    (wheel,) = folder.glob("runner-*.whl")
    return wheel


def pip(folder: Path, *arguments: str) -> None:
    offline = ("--disable-pip-version-check", "--no-index", "--no-deps", "--quiet")
    command = [sys.executable, "-W", "ignore", "-m", "pip", *arguments, *offline]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


def test_an_installed_wheel_creates_and_checks_a_database(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    environment = tmp_path / "environment"
    venv.create(environment)
    packages = sysconfig.get_path("purelib", vars={"base": str(environment)})
    pip(tmp_path, "install", "--target", packages, str(wheel))
    # A .pth file adds the tests' libraries, and not the editable Runner that lies beside them.
    libraries = sysconfig.get_path("purelib")
    (Path(packages) / "libraries.pth").write_text(libraries)

    def run(*arguments: str) -> str:
        python = str(environment / "bin" / "python")
        done = subprocess.run(
            [python, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout

    for module in ("runner", "runner.migrations"):
        found = run("-c", f"import {module}; print({module}.__file__)")
        assert found.startswith(packages)
    url = f"sqlite:///{tmp_path / 'runner.db'}"
    assert "upgraded from nothing" in run("-m", "runner", "db", "upgrade", "--database-url", url)
    assert "up to date" in run("-m", "runner", "db", "check", "--database-url", url)
    for data in ("runner/py.typed", "runner/llm/prices.toml", "runner/migrations/script.py.mako"):
        assert (Path(packages) / data).is_file()
    assert list(Path(packages).glob("runner/app/templates/*.css"))
