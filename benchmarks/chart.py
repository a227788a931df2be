"""A bar chart of figures as SVG: each bar is the share of its target that was used, and the line is the target."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.figure import Figure

_ROW, _LEFT, _WIDTH = 26, 330, 360
_FULL = 1.25
"""The right edge, as a share of the target."""


def drawn(figures: Sequence[Figure]) -> str:
    """Return the chart of figures whose target is an upper bound."""
    height = _ROW * len(figures) + 34
    target = _LEFT + _WIDTH / _FULL
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 70} {height}" '
            'font-family="system-ui, sans-serif" font-size="13" role="img">'
        ),
        "<title>Measured figures as a share of their targets</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for row, figure in enumerate(figures):
        top = row * _ROW + 8
        share = max(0.0, min(figure.value / figure.bar, _FULL))
        colour = "#2f7d57" if figure.is_reached else "#b3432b"
        unit = "" if figure.unit == "ratio" else f" {figure.unit}"
        lines += [
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end" fill="#222">{escape(figure.name)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{share * _WIDTH / _FULL:.1f}" height="18" fill="{colour}"/>',
            (
                f'<text x="{_LEFT + share * _WIDTH / _FULL + 6:.1f}" y="{top + 14}" fill="#222">'
                f"{figure.value:.3g}{unit} of {figure.bar:g}</text>"
            ),
        ]
    bottom = height - 22
    lines += [
        f'<line x1="{target:.1f}" y1="2" x2="{target:.1f}" y2="{bottom}" stroke="#555" stroke-dasharray="4 3"/>',
        f'<text x="{target:.1f}" y="{height - 6}" text-anchor="middle" fill="#555">target</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
