"""``make compose-test``: docker-compose.yml on a real engine. It builds the image, starts four workers,
kills some, scales, restarts Postgres and Redis, and checks that each effect of a job happened once.

Needs Docker (or Podman behind ``docker``) with the compose plugin, and the base images, on this machine
or from a registry. Exit code 2: there is no engine, so nothing was tested.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LARGEST_IMAGE_MB = 350
ITEMS, STEPS, SLOTS = 24, 8, 3
PATIENCE = 300.0
# Not the owner of the image's files, nor of the repository, where this user may choose.
USER = (1234, 1234) if os.getuid() == 0 else (os.getuid(), os.getgid())
PASSWORD = "p@ss:w/rd %41#'x"


class Project:
    """A compose project of its own, with a folder of job files."""

    def __init__(self, folder: Path) -> None:
        self.name = f"runner-test-{os.getpid()}"
        self.folder = folder
        self.image = f"{self.name}:latest"
        self.environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.name,
            "RUNNER_IMAGE": self.image,
            "RUNNER_WORKSPACE": str(folder),
            "RUNNER_SLOTS": str(SLOTS),
            "POSTGRES_PASSWORD": PASSWORD,
            "UID": str(USER[0]),
            "GID": str(USER[1]),
            "OTEL_SERVICE_NAME": "from outside",
        }

    def docker(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["docker", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        if check and done.returncode:
            said = done.stderr.strip()[-3000:]
            raise SystemExit(f"compose-test: docker {' '.join(arguments)} failed: {said}")
        return done.stdout

    def compose(self, *arguments: str, check: bool = True) -> str:
        return self.docker("compose", *arguments, check=check)

    def runner(self, *arguments: str, check: bool = True) -> str:
        """Run a ``runner`` command in a new container, and return what it prints."""
        return self.compose("run", "--rm", "--no-deps", "-T", "worker", *arguments, check=check)

    def shell(self, script: str) -> str:
        options = ("--rm", "--no-deps", "-T", "--entrypoint", "sh")
        return self.compose("run", *options, "worker", "-c", script)

    def workers(self) -> list[str]:
        return self.compose("ps", "--quiet", "worker").split()

    def scale(self, workers: int, *options: str) -> None:
        say(f"{workers} workers")
        self.compose("up", "--detach", "--no-build", *options, "--scale", f"worker={workers}")

    def counts(self, job: str) -> dict[str, int]:
        """Count the runs of a job by state; nothing while the database is away."""
        told = self.runner("show", job, "--json", check=False)
        counts: dict[str, int] = json.loads(told)["runs"] if told else {}
        return {state: count for state, count in counts.items() if count}

    def wait(self, job: str, ended: int) -> dict[str, int]:
        """Wait until so many runs of a job have ended well; none may end otherwise."""
        deadline = time.monotonic() + PATIENCE
        while True:
            counts = self.counts(job)
            bad = {state: counts.get(state, 0) for state in ("failed", "stopped", "cancelled")}
            hold(not any(bad.values()), f"no run fails: {counts}")
            if counts.get("succeeded", 0) >= ended:
                return counts
            hold(time.monotonic() < deadline, f"{ended} runs succeed in {PATIENCE:g} s: {counts}")

    def submit(self, name: str, mode: str, steps: int, verify: str) -> str:
        """Submit a job whose runs add a line to a file in each step."""
        folder = "repo" if mode == "git" else "path"
        call = [f"echo {step} >> log; sleep 0.5" for step in range(steps)]
        replies: list[dict[str, Any]] = [
            {"tools": [{"name": "Bash", "input": {"command": command}}]} for command in call
        ]
        items = [f"{name} {number}" for number in range(ITEMS)]
        script = {item: [*replies, {"text": "Done."}] for item in items}
        (self.folder / f"{name}.json").write_text(json.dumps(script))
        (self.folder / f"{name}.toml").write_text(
            f'name = "{name}"\nprovider = "scripted"\nmodel = "scripted"\nscript = "{name}.json"\n'
            f'prompt = "Do {{{{ item }}}}."\ntools = ["Bash"]\n'
            f'verify = [{json.dumps(verify)}]\non_failure = "fail"\n'
            f"[items]\nlist = {json.dumps(items)}\n"
            f'[workspace]\n{folder} = "{name}"\nmode = "{mode}"\n[permissions]\nallow = ["Bash"]\n'
        )
        return self.runner("submit", f"{name}.toml").strip()


def say(text: str) -> None:
    print(f"compose-test: {text}", flush=True)


def hold(condition: object, claim: str) -> None:
    if not condition:
        raise SystemExit(f"compose-test: FAILED: {claim}")


def check_image(project: Project) -> None:
    size = int(project.docker("image", "inspect", "--format", "{{.Size}}", project.image)) / 1e6
    say(f"the image has {size:.0f} MB")
    hold(size < LARGEST_IMAGE_MB, f"the image is smaller than {LARGEST_IMAGE_MB} MB")
    found = project.shell(
        "id -u; touch ~/x $RUNNER_HOME/x && echo writable; less --version | head -n 1; "
        "ssh -o ConnectTimeout=1 127.0.0.1 2>&1 | tail -n 1; "
        "python -c 'import opentelemetry.sdk' && echo otel; echo $OTEL_SERVICE_NAME; "
        "env | grep ANTHROPIC_BASE_URL || echo unset"
    ).splitlines()
    hold(found[:2] == [str(USER[0]), "writable"], f"user and home: {found}")
    hold(found[2].startswith("less"), f"less is there: {found}")
    hold("Connection refused" in found[3], f"ssh works for this user: {found}")
    hold(found[4:] == ["otel", "from outside", "unset"], f"variables are passed on: {found}")


def check_chaos(project: Project) -> None:
    """A job whose workers, database and queue die."""
    (project.folder / "copied").mkdir()
    own(project.folder)
    expected = "".join(map(str, range(STEPS)))
    verify = f'test "$HOME" = /home/runner && test "$(tr -d "\\n" < log)" = {expected}'
    job = project.submit("copied", "copy", STEPS, verify)
    project.wait(job, 2)
    for service in ("postgres", "redis"):
        killed = project.workers()[:2]
        say(f"kill {len(killed)} workers and restart {service}")
        project.docker("kill", "--signal", "KILL", *killed)
        project.compose("restart", "--timeout", "5", service)
        project.scale(6 if service == "postgres" else 2)
    say(f"all runs have ended: {project.wait(job, ITEMS)}")
    logs = project.shell("cat $RUNNER_HOME/workspaces/run_*/log | tr -d '\\n'")
    hold(logs == expected * ITEMS, f"each of {ITEMS * STEPS} effects happened once: {logs}")
    query = "SELECT count(*) FROM runs WHERE attempt > 1"
    psql = ("psql", "--username", "runner", "--tuples-only", "--command", query)
    again = int(project.compose("exec", "-T", "postgres", *psql))
    hold(again, "a killed worker had a run in hand, which another continued")
    say(f"{again} runs were continued by another worker")


def check_foreign_repository(project: Project) -> None:
    """A repository that belongs to another user than the workers."""
    repository = project.folder / "foreign"
    repository.mkdir()
    (repository / "README").write_text("A repository.\n")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "First"]):
        subprocess.run([*git, *command], check=True)
    own(project.folder)
    for path in (repository, *repository.rglob("*")):
        path.chmod(path.stat().st_mode | 0o666 | (0o111 if path.is_dir() else 0))
        if os.getuid() == 0:
            os.chown(path, 0, 0)
    job = project.submit("foreign", "git", 1, "git status --short && git log --oneline")
    say(f"all runs in a repository of another user have ended: {project.wait(job, ITEMS)}")


def own(folder: Path) -> None:
    """Give everything in a folder to the user of the containers."""
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, *USER)


def check_logs(project: Project) -> None:
    logs = project.compose("logs", "--no-color", "worker", "migrate")
    hold(PASSWORD not in logs, "no log has the password")
    hold("Traceback" not in logs, f"no worker has a traceback: {logs[-3000:]}")
    health = project.docker(
        "inspect", "--format", "{{.State.Health.Status}}", *project.workers()
    ).split()
    hold(health == ["healthy"] * len(health), f"the workers are healthy: {health}")


def main() -> int:
    engine = shutil.which("docker") and subprocess.run(
        ["docker", "compose", "ls"], capture_output=True, text=True
    )
    if not engine or engine.returncode:
        why = engine.stderr.strip().splitlines()[-1:] if engine else "there is no docker command"
        print(f"compose-test: nothing was tested, no container engine answers: {why}")
        return 2
    with tempfile.TemporaryDirectory(prefix="runner-compose-") as folder:
        project = Project(Path(folder))
        own(project.folder)
        try:
            say("build")
            project.compose("build", "worker", "migrate")
            check_image(project)
            project.scale(4, "--wait")
            check_chaos(project)
            check_foreign_repository(project)
            check_logs(project)
        finally:
            project.compose("down", "--volumes", "--timeout", "5", check=False)
            project.docker("image", "rm", project.image, check=False)
    say("each effect happened once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
