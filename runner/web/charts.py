"""Figures as SVG, drawn here: no script, and nothing that a browser has to load.

Each returns markup made of numbers alone. Words stand beside it, as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

_WIDTH, _HEIGHT = 600.0, 120.0
_GAP = 2.0


def bars(values: Sequence[float], label: str, titles: Sequence[str]) -> Markup:
    """Return a bar for each value, with a title that browsers show beside the pointer; ``label`` says
    what the figure shows, for screen readers."""
    most = max(values, default=0) or 1
    width = _WIDTH / max(len(values), 1)
    drawn = Markup().join(
        Markup(
            '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
        ).format(place * width, _HEIGHT - tall, width - min(_GAP, width / 4), tall, title)
        for place, (value, title) in enumerate(zip(values, titles, strict=True))
        for tall in [max(value / most * (_HEIGHT - 4), 1.5 if value else 0)]
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {:.0f} {:.0f}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, drawn)


def progress(counts: Sequence[tuple[str, int]]) -> Markup:
    """Return a bar with a part for each state and its number of runs."""
    total = sum(count for _, count in counts) or 1
    ends = [0.0]
    for _, count in counts:
        ends.append(ends[-1] + 100 * count / total)
    label = ", ".join(f"{count:,} {state}" for state, count in counts)
    drawn = Markup().join(
        Markup('<rect class="s-{}" x="{:.2f}" y="0" width="{:.2f}" height="8"/>').format(
            state.split(" (")[0], start, end - start
        )
        for (state, _), (start, end) in zip(counts, pairwise(ends), strict=True)
    )
    return Markup(
        '<svg class="progress" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(label, drawn)


def share(part: float) -> Markup:
    """Return a bar that is filled to a part of 1."""
    kind = "full" if part >= 1 else "near" if part >= 0.8 else "some"
    return Markup(
        '<svg class="progress thin" viewBox="0 0 100 8" preserveAspectRatio="none" '
        'aria-hidden="true"><rect class="b-{}" x="0" y="0" width="{:.1f}" height="8"/></svg>'
    ).format(kind, min(part, 1) * 100)
