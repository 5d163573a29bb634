"""Hooks of a job, run once each: commands with bash, functions in a child of their own."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runner.core.hooks.answer import Said
from runner.core.hooks.hook import FOLDER_NAME
from runner.ports import HookCall, Interrupt
from runner.tools.failure import ToolFailure
from runner.tools.host.client import Ended, Start, ToolHost
from runner.tools.own.source import OwnSource
from runner.tools.own.tool import command_of
from runner.tools.shell import bash_path, checked

_ENV = "env"


def run_hook(
    call: HookCall, host: ToolHost, environment: Mapping[str, str], interrupt: Interrupt
) -> Said:
    """Run a hook to its end, whatever that is. It works in the run's workspace, or, in a job without
    one, where the run's long outputs are; it sees what tools see.

    Raises:
        Interrupted: it was cut; all processes of it are gone.
    """
    began = time.monotonic()
    try:
        start, is_function = _start(call, environment)
        ended = host.call(start, interrupt)
    except ToolFailure as failure:
        return Said("not_started", output=str(failure).encode("utf-8", "replace"))
    said = _said_by_function(ended) if is_function else _said(ended)
    return replace(said, duration=time.monotonic() - began)


def _start(call: HookCall, environment: Mapping[str, str]) -> tuple[Start, bool]:
    folder = call.surroundings.workspace or _own_folder(call)
    told = _as_json({**call.told, "cwd": str(folder)})
    hook = call.hook
    if hook.function is not None:
        source = OwnSource.stored(hook.function)
        if source is None:
            raise ToolFailure(f"{hook.function!r} names no function")
        start = Start(command_of("hook", source), folder, call.run_id, hook.timeout, stdin=told)
        return start, True
    env = shutil.which(_ENV, path=environment.get("PATH"))
    if env is None:
        raise ToolFailure("env is not on the PATH of this worker: it has to be installed there")
    arguments = [
        env,
        f"{FOLDER_NAME}={folder}",
        bash_path(environment),
        "-c",
        checked(hook.command or ""),
    ]
    return Start(arguments, folder, call.run_id, hook.timeout, stdin=told), False


def _own_folder(call: HookCall) -> Path:
    folder = call.surroundings.outputs
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ToolFailure(f"the folder {folder} cannot be made: {error.strerror}") from error
    return folder


def _as_json(told: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(told).encode()
    except RecursionError as error:
        raise ToolFailure("the input of the call is nested too deeply to be told") from error


def _said(ended: Ended) -> Said:
    return Said(ended.end, ended.exit_code, ended.output, ended.errors, ended.cut)


def _said_by_function(ended: Ended) -> Said:
    """What a function gave is what a command prints; what it raised, what one that failed says."""
    word, newline, text = ended.output.partition(b"\n")
    if ended.end != "exited" or not newline or word not in (b"succeeded", b"failed"):
        return replace(_said(ended), exit_code=ended.exit_code or 1)
    if word == b"failed":
        return Said("exited", 1, b"", text + b"\n" + ended.errors)
    return Said("exited", 0, text, ended.errors, ended.cut)
