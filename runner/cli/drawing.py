"""The live screen as lines of text, for a terminal of any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.app.humanize import SHORT_ID, duration
from runner.app.watch import RunLine, View
from runner.cli.terminal import STATE_STYLES, Line, Span, cells

_WIDE = 120  # columns from which on the model's words are beside what a run does, not below it
_LONGEST_NAME, _LONGEST_WIDE_NAME = 20, 32
_TURN, _TIME, _SLOW = 7, 7, "SLOW"
_LEAST_NOTES = 3
_TOLD_SECONDS = 10.0  # longer calls are shown with their time
# From succeeded to not begun; without colours the characters tell them apart.
_BAR = (
    (("succeeded",), "█", "green"),
    (("failed", "stopped", "cancelled"), "▓", "red"),
    (("running",), "▒", "blue"),
    (("waiting", "interrupted"), "░", "cyan"),
)
TONES = {"plain": "", "good": "green", "bad": "red", "wait": "yellow", "person": "bold magenta"}


def frame(
    view: View,
    now: float,
    width: int,
    height: int,
    *,
    notes: Sequence[Line] = (),
    panel: Sequence[Line] = (),
    footer: Line = (),
) -> list[Line]:
    """Return the lines of a screen: at most ``height``, none wider than ``width`` cells.

    Args:
        now: seconds since the epoch.
        notes: what happened, the newest last; as many as there is room for.
        panel: stands above the footer, whole; only its last lines if the screen is too small for it.
    """
    head = [*_head(view, width)]
    panel = panel[-max(0, height - len(head) - 1) :] if panel else ()
    room = height - len(head) - len(panel) - 1
    body = [*_runs(view, now, width, room)]
    if (left := room - len(body) - 1) > 0 and notes:
        body += [[], *notes[-left:]]
    body += [[]] * (room - len(body))
    lines = [*head, *body, *panel, footer]
    return [clipped(line, width) for line in lines[:height]]


def panel_room(height: int) -> int:
    """Return how many lines a panel can have without covering the head of the screen."""
    return max(1, height - 6)


def _head(view: View, width: int) -> Iterator[Line]:
    left = f"{view.name}  {view.job_id[-SHORT_ID:]}"
    right = duration(view.seconds)
    name = fit(left, max(0, width - len(right) - 1))
    yield [(name, "bold"), (" " + right, "")]
    yield _bar(view, width)
    counts: list[Span] = []
    for state, count in view.counts.items():
        counts += [(f"{count} {state}", STATE_STYLES[state]), ("  ", "")]
    if view.unworked:
        counts.append(("no worker is alive", "bold red"))
    yield counts
    yield from _flowing([*view.facts], width)
    yield []


def _bar(view: View, width: int) -> Line:
    share = f" {view.ended}/{view.total} {view.ended / view.total if view.total else 1:4.0%}"
    room = max(0, width - len(share))
    bar: list[Span] = []
    drawn = items = 0
    for states, character, style in _BAR:
        items += sum(view.counts.get(state, 0) for state in states)
        until = round(room * items / view.total) if view.total else 0
        bar.append((character * (until - drawn), style))
        drawn = until
    return [*bar, ("·" * (room - drawn), "dim"), (share, "bold")]


def _flowing(words: Sequence[str], width: int) -> Iterator[Line]:
    """Yield words on as many lines as they need."""
    line = ""
    for word in words:
        if line and len(line) + 3 + len(word) > width:
            yield [(line, "")]
            line = ""
        line = f"{line} · {word}" if line else word
    yield [(line, "")]


def _runs(view: View, now: float, width: int, room: int) -> Iterator[Line]:
    is_wide = width >= _WIDE
    shown = [*view.runs]
    lines_each = 1 if is_wide or 2 * len(shown) + _LEAST_NOTES > room else 2
    more = view.more_runs
    if len(shown) * lines_each + (1 if more else 0) > room:
        fit_here = max(0, (room - 1) // lines_each)
        more += len(shown) - fit_here
        shown = shown[:fit_here]
    longest = max((width_of(run.name) for run in shown), default=0)
    name = min(longest, _LONGEST_WIDE_NAME if is_wide else _LONGEST_NAME)
    if shown and len(shown) * lines_each + (1 if more else 0) < room:
        yield [(f"{'item':<{name}}{'turn':>{_TURN}}{'time':>{_TIME}}", "dim underline")]
    slow = len(_SLOW) + 1 if any(run.is_slow for run in shown) else 0
    rest = max(0, width - name - _TURN - _TIME - slow - 2)
    for run in shown:
        turn, took = run.turn.rjust(_TURN), duration(run.seconds).rjust(_TIME)
        begin: list[Span] = [(fit(tail(run.name, name), name), "bold"), (turn, "dim"), (took, "")]
        begin.append((f" {_SLOW if run.is_slow else ''}".ljust(slow), "bold yellow"))
        doing, style = _doing(run, now)
        if is_wide:
            half = rest // 2
            beside = [("  ", ""), (tail(run.text, rest - half), "dim")]
            yield [*begin, ("  ", ""), (fit(doing, half - 2), style), *beside]
            continue
        if lines_each == 1 and run.text and run.doing.words in ("", "model"):
            doing, style = tail(run.text, rest), "dim"
        yield [*begin, ("  ", ""), (fit(doing, rest), style)]
        if lines_each == 2 and run.text:
            yield [("  ", ""), (tail(run.text, width - 2), "dim")]
    if more > 0:
        yield [(f"… and {more} more", "dim")]


def _doing(run: RunLine, now: float) -> Span:
    doing = run.doing
    if doing.until is not None:
        return f"in {duration(max(0.0, doing.until - now))}: {doing.words}", "yellow"
    tool, _, rest = doing.words.partition(" ")
    is_tool = tool and not tool.endswith(":")
    if is_tool and doing.since is not None and now - doing.since >= _TOLD_SECONDS:
        tool = f"{tool} ({duration(now - doing.since)})"
    return f"{tool} {rest}".strip(), ""


# Texts in cells of a terminal


def width_of(text: str) -> int:
    """Return the most cells that a terminal takes for a text."""
    return len(text) if text.isascii() else sum(map(cells, text))


def fit(text: str, width: int) -> str:
    """Return a text of exactly ``width`` cells: cut, or filled with blanks."""
    used = width_of(text)
    if used > width:
        text, used = _first(text, width - 1)
        text, used = (text + "…", used + 1) if width > 0 else ("", 0)
    return text + " " * (width - used)


def tail(text: str, width: int) -> str:
    """Return the end of a text, of at most ``width`` cells."""
    if width_of(text) <= width:
        return text
    end, _ = _first(text[::-1], width - 1)
    return "…" + end[::-1] if width > 0 else ""


def clipped(line: Line, width: int) -> Line:
    """Return a line of at most ``width`` cells."""
    found: list[Span] = []
    for text, style in line:
        if width_of(text) > width:
            return [*found, (fit(text, width), style)]
        found.append((text, style))
        width -= width_of(text)
    return found


def _first(text: str, width: int) -> tuple[str, int]:
    used = 0
    for at, character in enumerate(text):
        if used + cells(character) > width:
            return text[:at], used
        used += cells(character)
    return text, used
