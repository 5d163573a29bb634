"""A plot of a few lines as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 170, 20, 40
_COLOURS = ("#666666", "#1a7f37", "#0969da", "#bf8700", "#cf222e", "#8250df", "#bc4c00")


def plot(lines: Mapping[str, Mapping[int, float]]) -> str:
    """Return an SVG page of milliseconds against turns, a line and its name for each side."""
    lengths = sorted({length for line in lines.values() for length in line})
    most = max(value for line in lines.values() for value in line.values()) * 1.05
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(length: int) -> float:
        return _LEFT + (right - _LEFT) * lengths.index(length) / max(1, len(lengths) - 1)

    def y(value: float) -> float:
        return bottom - (bottom - _TOP) * value / most

    step = max(1, round(most / 5))
    shapes = [
        f'<line x1="{_LEFT}" x2="{right}" y1="{y(at):.1f}" y2="{y(at):.1f}" stroke="#d0d7de"/>'
        f'<text x="{_LEFT - 8}" y="{y(at) + 4:.1f}" text-anchor="end">{at}</text>'
        for at in range(0, int(most) + 1, step)
    ]
    shapes += [
        f'<text x="{x(length):.1f}" y="{bottom + 20}" text-anchor="middle">{length} turns</text>'
        for length in lengths
    ]
    names = sorted(lines, key=lambda name: -lines[name][lengths[-1]])
    for name, colour in zip(lines, _COLOURS, strict=False):
        line = lines[name]
        points = " ".join(f"{x(length):.1f},{y(line[length]):.1f}" for length in lengths)
        shapes.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        row = _TOP + 14 + 20 * names.index(name)
        shapes.append(f'<text x="{right + 12}" y="{row}" fill="{colour}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#57606a">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
        f'<text x="{_LEFT}" y="12">milliseconds of a turn</text>{"".join(shapes)}</svg>\n'
    )
