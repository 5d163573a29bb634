"""The live screen: what it draws, and how it behaves in a real terminal (tmux)."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.app.watch import View, Watch
from runner.cli.drawing import fit, frame, tail, width_of
from runner.cli.screen import notification_sequence, progress_sequence
from runner.cli.watching import Lines
from tests.app.watched import NOW, event, look, run
from tests.cli.person import at_terminal
from tests.cli.test_work import DONE, HELD, bash, write_job

GOLDEN = Path(__file__).parent / "golden"
PATIENCE = 120.0
Golden = Callable[[str, str], None]
PANEL = [
    "─",
    "deliveries asks to use Bash (run_deliveries, waiting 12s)",
    "  │ touch installed",
    "allow it? y(es), n(o): ",
]


def busy_job() -> Watch:
    """A job of 30 items in the middle of its work, seen twice."""
    watch = Watch()
    ended = [run(f"done-{n:02}", "succeeded", started_at=NOW - 40) for n in range(12)]
    runs = [
        *ended,
        run("carts", "failed", reason="verify"),
        run("deliveries", "waiting", reason="approval"),
        run("slugs", started_at=NOW - 185, turns=11),
        run("src/a/very/long/path/to/a/module/money.py", started_at=NOW - 65),
        run("stock", "queued", reason="backoff", due_at=NOW + 43, started_at=NOW - 50),
        *(run(f"i{n}", started_at=NOW - n) for n in range(3)),
        *(run(f"later-{n}", "queued") for n in range(10)),
    ]
    events = {
        "run_slugs": [
            event(
                1,
                "tool_started",
                NOW - 75,
                turn=12,
                call_index=0,
                name="Bash",
                input="pytest -q tests",
            )
        ],
        "run_stock": [
            event(1, "model_call_ended", kind="overloaded_error", message="Overloaded"),
            event(2, "retry_scheduled", at=NOW + 43),
        ],
        "run_i1": [event(1, "model_call_started", NOW - 1)],
    }
    text = {"run_slugs": "The rounding is wrong in two places, so I run the tests of both first."}
    watch.see(look([run("slugs", turns=2)], NOW - 30))
    watch.see(look(runs, events=events, texts=text, asking=1))
    return watch


@pytest.fixture(scope="module")
def view() -> View:
    return busy_job().view(NOW)


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """Compares with a golden file; ``--write-golden`` writes it anew."""

    def compare(name: str, found: str) -> None:
        if pytestconfig.getoption("--write-golden"):
            (GOLDEN / name).write_text(found)
        assert found == (GOLDEN / name).read_text()

    return compare


def drawn(view: View, width: int, height: int, panel: list[str] | None = None) -> list[str]:
    notes = [[(f"12:00:0{n}  [{n}/30] succeeded  done-{n:02}", "")] for n in range(9)]
    lines = frame(
        view,
        NOW,
        width,
        height,
        notes=notes,
        panel=[[(line, "")] for line in panel or ()],
        footer=[("q detaches", "")],
    )
    return ["".join(text for text, _ in line).rstrip() for line in lines]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_screen_is_drawn_as_in_the_golden_file(
    golden: Golden, view: View, width: int, height: int
) -> None:
    golden(f"screen-{width}x{height}.txt", "\n".join(drawn(view, width, height)) + "\n")


def test_question_is_asked_below_the_bar(golden: Golden, view: View) -> None:
    golden("screen-question-80x24.txt", "\n".join(drawn(view, 80, 24, PANEL)) + "\n")


@pytest.mark.parametrize(
    ("width", "height"), [(1, 1), (20, 5), (40, 10), (79, 24), (119, 30), (400, 100)]
)
def test_no_line_is_wider_and_no_screen_higher_than_the_terminal(
    view: View, width: int, height: int
) -> None:
    lines = drawn(view, width, height, PANEL)
    assert len(lines) <= height
    assert all(width_of(line) <= width for line in lines)


@pytest.mark.parametrize("text", ["plain", "日本語のキー", "👍🏽 emoji", ""])
@pytest.mark.parametrize("width", [0, 1, 2, 5, 30])
def test_texts_fit_a_width_in_cells(text: str, width: int) -> None:
    assert width_of(fit(text, width)) == width
    assert width_of(tail(text, width)) <= width


def test_piped_lines_are_as_in_the_golden_file(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form, name in (("auto", "lines.txt"), ("json", "lines.jsonl"), ("quiet", "quiet.txt")):
        stream = io.StringIO()
        lines = Lines(stream, form)  # type: ignore[arg-type]
        watch = Watch()
        paused = event(2, "paused", by="lena", why="too dear", new={"reason": "person"})
        for runs, more in (
            ([run("a"), run("b")], {}),
            ([run("a", "succeeded"), run("b", "waiting", reason="approval")], {}),
            (
                [run("a", "succeeded"), run("b", "waiting", reason="paused")],
                {"job_events": [paused]},
            ),
            ([run("a", "succeeded"), run("b", "queued")], {"workers": 0}),
            ([run("a", "succeeded"), run("b", "failed", reason="verify")], {}),
        ):
            for happening in watch.see(look(runs, **more)):
                lines.tell(happening)
            lines.show(watch.view(NOW), lambda: NOW)
        monkeypatch.setattr("runner.cli.watching._COUNTER_SECONDS", 0.0)
        lines.show(watch.view(NOW), lambda: NOW)
        monkeypatch.undo()
        golden(name, stream.getvalue())
        if form == "json":
            assert all(json.loads(line)["type"] for line in stream.getvalue().splitlines())


@pytest.mark.parametrize(
    ("environment", "takes"),
    [
        ({"TERM_PROGRAM": "ghostty"}, (True, True)),
        ({"TERM_PROGRAM": "ghostty", "TMUX": "/tmp/x"}, (False, False)),
        ({"TERM_PROGRAM": "iTerm.app", "TERM_PROGRAM_VERSION": "3.5.0"}, (False, True)),
        ({"TERM_PROGRAM": "iTerm.app", "TERM_PROGRAM_VERSION": "3.6.6"}, (True, True)),
        (
            {"TERM_PROGRAM": "WezTerm", "TERM_PROGRAM_VERSION": "20240203-110809-5046fc22"},
            (False, True),
        ),
        ({"WT_SESSION": "1"}, (True, False)),
        ({"TERM": "xterm-kitty"}, (False, True)),
        ({"TERM": "xterm-256color"}, (False, False)),
    ],
)
def test_only_terminals_known_to_take_them_get_progress_and_notifications(
    environment: dict[str, str], takes: tuple[bool, bool]
) -> None:
    sent = (
        progress_sequence(environment, 40),
        notification_sequence(environment, "a\x1b;b\x07 needs you"),
    )
    assert tuple(map(bool, sent)) == takes
    assert sent[0] in ("", "\x1b]9;4;1;40\x1b\\")
    assert sent[1] in ("", "\x1b]9;ab needs you\x1b\\")


@pytest.mark.slow
def test_each_drawing_is_one_synchronised_update_without_colours_and_the_terminal_is_given_back(
    folder: Path,
) -> None:
    job = write_job(folder, {"a": [bash(HELD), DONE]})
    with at_terminal(folder, "run", job, columns=80) as (process, person):
        for _ in range(3):  # what a call has taken is counted
            person.wait_for("0/1")
        (folder / "workspace" / "go").touch()
        assert process.wait(PATIENCE) == 0, person.screen.getvalue()
        person.wait_for("1 succeeded")
    shown = person.screen.getvalue()
    screen, _, after = shown.partition("\x1b[?1049l")
    begun, ended = screen.count("\x1b[?2026h"), screen.count("\x1b[?2026l")
    assert begun >= ended > 2
    drawings = [each.partition("\x1b[?2026l")[0] for each in screen.split("\x1b[?2026h")[1:]]
    drawn_ones = [each for each in drawings if "0/1" in each]
    assert drawn_ones
    assert not any("\x1b[2J" in each for each in drawn_ones), "a cleared screen flickers"
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", screen) is None, "NO_COLOR"
    assert "1 succeeded" in after
    assert "\x1b[?7h" in shown[shown.rindex("\x1b[?7l") :]


# --- In tmux


class Tmux:
    """A terminal in tmux, on a server of its own."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self._server = ("tmux", "-S", str(folder / "tmux"), "-f", "/dev/null")
        shell = f"cd {folder}; exec env -u NO_COLOR -u COLUMNS -u LINES bash --norc --noprofile"
        size = ("-x", str(width), "-y", str(height))
        self._run("new-session", "-d", *size, shell)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._server, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout

    def keys(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def runner(self, *arguments: str) -> None:
        self.keys(f"{sys.executable} -m runner {' '.join(arguments)}; echo code $?", "Enter")

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def wait_for(self, is_shown: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + PATIENCE
        while not is_shown(shown := self.screen()):
            assert time.monotonic() < deadline, shown
            time.sleep(0.1)
        return shown

    def close(self) -> None:
        subprocess.run([*self._server, "kill-server"], capture_output=True)


@pytest.fixture
def tmux(folder: Path) -> Iterator[Callable[[int, int], Tmux]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: the live screen is not tried in a terminal")
    opened: list[Tmux] = []

    def open_one(width: int, height: int) -> Tmux:
        opened.append(Tmux(folder, width, height))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def asking_job(folder: Path) -> str:
    """A job with a run that works for long and one that asks."""
    begin = bash("until [ -e go ]; do sleep 0.1; done")
    script = {
        "slow": [{"text": "I look \x1b[2Jfirst.", **begin}, begin, DONE],
        "asks": [bash("touch x"), DONE],
    }
    job = write_job(folder, script)
    rules = 'ask = ["Bash(touch *)"]\nallow = ["Bash"]'
    text = (folder / job).read_text().replace('allow = ["Bash"]', rules)
    (folder / job).write_text(text)
    return job


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_live_screen_shows_asks_and_ends_in_a_terminal(
    tmux: Callable[[int, int], Tmux], folder: Path, width: int, height: int
) -> None:
    job = asking_job(folder)
    terminal = tmux(width, height)
    terminal.runner("run", job)
    shown = terminal.wait_for(lambda shown: "allow it?" in shown)
    first, *_ = shown.splitlines()
    assert first.startswith("job  ")
    assert "0/2" in shown
    assert "asks asks to use Bash" in shown
    terminal.wait_for(lambda shown: "Bash until" in shown and "I look ␛[2Jfirst." in shown)
    terminal.resize(60, 20)
    shrunk = terminal.wait_for(lambda shown: "allow it?" in shown and "0/2" in shown)
    assert len(shrunk.splitlines()) <= 20
    terminal.resize(width, height)
    terminal.keys("y", "Enter")
    terminal.wait_for(lambda shown: "[1/2] succeeded  asks" in shown and "allow it?" not in shown)
    assert (folder / "workspace" / "x").exists()
    (folder / "workspace" / "go").touch()
    after = terminal.wait_for(lambda shown: "code 0" in shown)
    assert "2 succeeded" in after
    assert "q detaches" not in after


@pytest.mark.slow
def test_q_leaves_a_worker_behind_that_an_attached_terminal_shows(
    tmux: Callable[[int, int], Tmux], folder: Path
) -> None:
    job = asking_job(folder)
    terminal = tmux(100, 30)
    terminal.runner("run", job, "--no-input")
    terminal.wait_for(lambda shown: "Bash until" in shown)
    terminal.keys("q")
    shown = terminal.wait_for(lambda shown: "code 0" in shown)
    assert re.search(r"goes on with \w{8}\b", shown)
    assert re.search(r"runner attach \w{8}\b", shown)
    (log,) = (folder / ".runner" / "logs").iterdir()
    terminal.keys("clear", "Enter")
    terminal.runner("attach", log.stem)
    terminal.wait_for(lambda shown: "allow it?" in shown)
    terminal.keys("n", "Enter")
    terminal.keys("Enter")
    terminal.wait_for(lambda shown: "[1/2] succeeded  asks" in shown)
    (folder / "workspace" / "go").touch()
    terminal.wait_for(lambda shown: "code 0" in shown and "2 succeeded" in shown)


@pytest.mark.slow
def test_pause_from_elsewhere_is_said_in_an_attached_terminal(
    tmux: Callable[[int, int], Tmux], folder: Path
) -> None:
    job = write_job(folder, {"a": [bash("until [ -e go ]; do sleep 0.1; done"), DONE]})
    submit = [sys.executable, "-m", "runner", "submit", job]
    job_id = subprocess.run(submit, cwd=folder, capture_output=True, text=True).stdout.strip()
    terminal = tmux(160, 30)
    terminal.runner("attach", job_id)
    terminal.wait_for(lambda shown: "no worker is alive" in shown)
    pause = ["pause", job_id, "--as", "lena", "--reason", "too dear"]
    subprocess.run([sys.executable, "-m", "runner", *pause], cwd=folder, check=True)
    terminal.wait_for(
        lambda shown: f"lena paused the job: too dear; `runner resume {job_id[-8:]}`" in shown
    )
    resume = ["resume", job_id, "--as", "ben"]
    subprocess.run([sys.executable, "-m", "runner", *resume], cwd=folder, check=True)
    terminal.wait_for(lambda shown: "ben resumed the job" in shown)
    terminal.keys("q")
    left = terminal.wait_for(lambda shown: "code 0" in shown)
    assert (
        f"detached: no worker is alive, go on with `runner run --resume {job_id[-8:]}`"
        in left.replace("\n", "")
    )
