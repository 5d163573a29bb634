"""A real container engine, and images made of programs of this machine."""

# ruff: noqa: PTH118

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pydantic

from runner.tools.containers import Engine, find_engine

ENGINE = find_engine(os.environ)
NO_ENGINE = f"no container engine here: {ENGINE}" if isinstance(ENGINE, str) else ""
_PROGRAMS = "bash sh env cat ls touch sleep id mkdir rm mv ln chmod grep head seq setsid true git"
_UNNEEDED = re.compile(
    r"__pycache__|lib2to3|idlelib|ensurepip|tkinter|/test|/config-|site-packages"
)
_LIBRARY = Path(os.__file__).parent
_PACKAGES = ("pydantic", "annotated_types", "typing_inspection")


def engine(*arguments: str, given: bytes | None = None) -> str:
    assert isinstance(ENGINE, Engine)
    done = subprocess.run([ENGINE.program, *arguments], input=given, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def make_image(name: str, *, python: bool) -> None:
    """Make an image of a few programs, and of Python with pydantic."""
    path = "/usr/bin:/bin"
    found = {each for name in _PROGRAMS.split() if (each := shutil.which(name, path=path))}
    needing: set[str] = set()  # libraries
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", dereference=True) as archive:
        if python:
            interpreter = os.path.realpath(sys.executable)
            found.add(interpreter)
            link = tarfile.TarInfo("usr/local/bin/python3")
            link.type, link.linkname = tarfile.SYMTYPE, interpreter
            archive.addfile(link)
            version = f"{sys.version_info.major}{sys.version_info.minor}"
            packages = Path(pydantic.__file__).parents[1]
            with zipfile.ZipFile(
                modules := io.BytesIO(), "w"
            ) as zipped:  # few files: engines are slow
                for top in (_LIBRARY, *(packages / each for each in _PACKAGES)):
                    below = _LIBRARY if top == _LIBRARY else packages
                    for each in top.rglob("*.py"):
                        if not _UNNEEDED.search(place := str(each.relative_to(below))):
                            zipped.write(each, place)
                zipped.write(packages / "typing_extensions.py", "typing_extensions.py")
            member = tarfile.TarInfo(f"{_LIBRARY.parent}/python{version}.zip".lstrip("/"))
            member.size = modules.tell()
            modules.seek(0)
            archive.addfile(member, modules)
            compiled = packages / "pydantic_core"
            placed = {
                each: each for each in (*_LIBRARY.glob("lib-dynload/*.so"), _LIBRARY / "os.py")
            }
            core = (*compiled.glob("*.so"), *compiled.glob("*.py"))
            placed |= {each: _LIBRARY / "site-packages/pydantic_core" / each.name for each in core}
            for source, target in placed.items():
                archive.add(source, str(target).lstrip("/"))
            needing = {str(each) for each in placed if each.suffix == ".so"}
        for folder in (each for each in Path("/").iterdir() if each.is_symlink()):  # /bin, /lib …
            link = tarfile.TarInfo(folder.name)
            link.type, link.linkname = tarfile.SYMTYPE, str(folder.readlink())
            archive.addfile(link)
        for each in sorted(set(map(_placed, found | _libraries(found | needing)))):
            archive.add(each, each.lstrip("/"))
    variables = ["--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin"]
    engine("import", *variables, "-", name, given=stream.getvalue())


def _placed(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _libraries(programs: Iterable[str]) -> set[str]:
    said = subprocess.run(["ldd", *map(os.path.realpath, programs)], capture_output=True, text=True)
    return set(re.findall(r"(/\S+) \(0x", said.stdout))
