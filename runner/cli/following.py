"""Following a run for a person: a line for each event that matters, and the model's text as it comes."""

from __future__ import annotations

import sys
from datetime import datetime

from runner.app import handle
from runner.app import show as app_show
from runner.app.event_words import event_note
from runner.app.humanize import cell, lines
from runner.cli.drawing import TONES
from runner.cli.terminal import MARGIN, Line, print_lines
from runner.core.agents import place_of


def follow_in_words(
    app: handle.App, id: str, *, whole_tree: bool = False, only_new: bool = False
) -> None:
    """Print what happens in a run until it has ended (``only_new``: from now on). Raises
    ``UnreachableError``. The model's text is indented, so that none of it looks like Runner's lines."""
    writing = ""  # the run whose text stands on the last line

    def tell(line: Line) -> None:
        nonlocal writing
        if writing:
            sys.stdout.write("\n")
        writing = ""
        print_lines([line], paged=False)

    def warn(reason: str) -> None:
        tell([(cell(reason), TONES["wait"])])

    found = app_show.follow(app, id, tell=warn, whole_tree=whole_tree, only_new=only_new)
    for event in found:
        label = place_of(event["run_id"])["label"]
        whose = [(f"{label}  ", "magenta")] if label else []
        if event["type"] == "text_delta":
            if writing != event["run_id"]:
                sys.stdout.write("\n" + MARGIN if writing else MARGIN)
            sys.stdout.write(lines(event["text"]).replace("\n", f"\n{MARGIN}"))
            writing = event["run_id"]
        elif said := event_note(event["type"], event["data"], event["attempt"]):
            at = datetime.fromtimestamp(event["at"]).astimezone().strftime("%H:%M:%S")
            tell([(f"{at}  ", "dim"), *whose, (said.words, TONES[said.tone])])
        sys.stdout.flush()
    if writing:
        sys.stdout.write("\n")
