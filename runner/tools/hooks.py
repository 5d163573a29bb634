"""Run the hooks of a job, and read the instructions in a workspace.

A command runs with bash, a function in a child process of its own.
"""

# ruff: noqa: PTH118 - its paths are strings

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runner.core.entries import InstructionsRead
from runner.core.hooks import FOLDER_NAME, Said
from runner.core.text import plain
from runner.core.workspace import INSTRUCTION_FILES, MOST_INSTRUCTION_BYTES, Instructions
from runner.errors import HostFaultError
from runner.permissions import ResolvedPath, Rule
from runner.permissions.decisions import Policy, may_touch
from runner.ports import HookCall, Interrupt
from runner.tools.file_access import Places, ToolFailure, open_file, tool_context_of
from runner.tools.functions import command_of
from runner.tools.host import Start, Starter, boot_needs
from runner.tools.own import OwnSource
from runner.tools.shell import bash_path, checked

_READ = "Read"
_ASKED_FOR = Rule("allow", _READ)


def run_hook(
    call: HookCall, host: Starter, environment: Mapping[str, str], interrupt: Interrupt
) -> Said:
    """Run a hook and return its outcome, also of a failed one. It works in the run's workspace, else in
    the folder of the run's long outputs, and sees what tools see. Raises ``Interrupted`` if it was cut,
    and ``HostFaultError`` if this host cannot start it; no process of it is left."""
    began = time.monotonic()
    try:
        ended = host.call(_start(call, environment), interrupt)
    except ToolFailure as failure:
        return Said("not_started", output=str(failure).encode("utf-8", "replace"))
    if ended.end == "limited":
        return Said(ended.end, output=ended.limit.encode(), duration=time.monotonic() - began)
    said = Said(ended.end, ended.exit_code, ended.output, ended.errors, ended.cut)
    if call.hook.function is not None:
        # A function's return value counts as a command's output, its exception as a command's failure.
        word, newline, text = ended.output.partition(b"\n")
        if ended.end != "exited" or not newline or word not in (b"succeeded", b"failed"):
            said = replace(said, exit_code=ended.exit_code or 1)
        elif word == b"failed":
            said = Said("exited", 1, b"", text + b"\n" + ended.errors)
        else:
            said = replace(said, exit_code=0, output=text)
    return replace(said, duration=time.monotonic() - began)


def _start(call: HookCall, environment: Mapping[str, str]) -> Start:
    hook, folder = call.hook, call.surroundings.workspace or call.surroundings.outputs
    needs: list[Path] = []
    if call.surroundings.workspace is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ToolFailure(f"the folder {folder} cannot be made: {error.strerror}") from error
    try:
        told = json.dumps({**call.told, "cwd": str(folder)}).encode()
    except RecursionError as error:
        raise ToolFailure("the input of the call is nested too deeply to be told") from error
    if hook.function is not None:
        source = OwnSource.stored(hook.function)
        if source is None:
            raise ToolFailure(f"{hook.function!r} names no function")
        arguments, needs = command_of("hook", source), [source.folder, *boot_needs()]
    else:
        env = shutil.which("env", path=environment.get("PATH"))
        if env is None:
            raise HostFaultError("env is not on the PATH of this worker: install it there")
        command = [bash_path(environment), "-c", checked(hook.command or "")]
        arguments = [env, f"{FOLDER_NAME}={folder}", *command]
    return Start(arguments, folder, call.run_id, hook.timeout, stdin=told, needs=needs)


def read_instructions(places: Places, policy: Policy) -> InstructionsRead:
    """Return the instruction files in a workspace's root, each once even if links lead to it. Files that
    the rules deny to Read or ask about are left out."""
    files: dict[str, Instructions] = {}
    left_out = []
    root, names = places.workspace or "", INSTRUCTION_FILES if places.workspace else ()
    own = {name: os.path.join(root, name) for name in names}
    for name, path in own.items():
        if not os.path.lexists(path):
            continue
        try:
            real = places.find(name)
            if real not in files:
                _require(ResolvedPath(path, real), places, policy, asked_for=real in own.values())
                with open(open_file(real, name), "rb") as file:
                    content = file.read(MOST_INSTRUCTION_BYTES + 1)
                files[real] = Instructions(
                    name, hashlib.sha256(content).hexdigest(), _text(content)
                )
        except ToolFailure as failure:
            left_out.append(str(failure))
        except ValueError as error:
            left_out.append(f"{name}: {error}")
        except OSError as error:
            left_out.append(f"{name}: {error.strerror}")
    return InstructionsRead(tuple(files.values()), tuple(left_out))


def _require(place: ResolvedPath, places: Places, policy: Policy, *, asked_for: bool) -> None:
    """Raise ``ValueError`` unless the rules let a file be read. One that the job has ``asked_for`` with
    its instructions needs no rule that allows it."""
    if asked_for:
        policy = replace(policy, rules=(*policy.rules, _ASKED_FOR))
    decision = may_touch(policy, _READ, place, tool_context_of(places))
    if decision.effect == "allow" or (asked_for and not decision.matched_rules):
        return
    leads = "" if place.real == place.named else f"it leads to {places.name(place.real)}: "
    raise ValueError(f"{leads}{_READ} is {decision.explain()}")


def _text(content: bytes) -> str:
    if len(content) > MOST_INSTRUCTION_BYTES:
        raise ValueError(f"it has more than {MOST_INSTRUCTION_BYTES:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    if not text.strip():
        raise ValueError("it is empty")
    return plain(text)
