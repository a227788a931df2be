"""Bar charts as SVG: figures as shares of their targets, and times in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import attrs

from benchmarks.figure import Figure

_ROW, _LEFT, _WIDTH = 26, 330, 360
_FULL = 1.25
"""The right edge, as a share of the target."""
_GOOD, _MISSED, _OTHER = "#2f7d57", "#b3432b", "#8a93a0"


@attrs.frozen
class _Bar:
    name: str
    share: float
    """Of the width."""
    colour: str
    text: str


def draw_figures(figures: Sequence[Figure]) -> str:
    """Return the chart of figures whose target is an upper bound: a bar is the share of its target that was used."""
    target = _LEFT + _WIDTH / _FULL
    bottom = _ROW * len(figures) + 12
    return _draw(
        "Measured figures as a share of their targets",
        [
            _Bar(
                figure.name,
                max(0.0, min(figure.value / figure.bar, _FULL)) / _FULL,
                _GOOD if figure.is_reached else _MISSED,
                f"{figure.value:.3g}{'' if figure.unit == 'ratio' else f' {figure.unit}'} of {figure.bar:g}",
            )
            for figure in figures
        ],
        [
            f'<line x1="{target:.1f}" y1="2" x2="{target:.1f}" y2="{bottom}" stroke="#555" stroke-dasharray="4 3"/>',
            f'<text x="{target:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#555">target</text>',
        ],
    )


def draw_times(title: str, times: Mapping[str, float]) -> str:
    """Return the chart of times in seconds, by name; those of flowckpt stand out."""
    longest = max(times.values())
    return _draw(
        title,
        [
            _Bar(name, time / longest, _GOOD if name.startswith("flowckpt") else _OTHER, f"{time * 1e3:.2f} ms")
            for name, time in times.items()
        ],
    )


def _draw(title: str, bars: Sequence[_Bar], marks: Iterable[str] = ()) -> str:
    height = _ROW * len(bars) + 34
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 70} {height}" '
            'font-family="system-ui, sans-serif" font-size="13" role="img">'
        ),
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for row, bar in enumerate(bars):
        top = row * _ROW + 8
        lines += [
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end" fill="#222">{escape(bar.name)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{bar.share * _WIDTH:.1f}" height="18" fill="{bar.colour}"/>',
            f'<text x="{_LEFT + bar.share * _WIDTH + 6:.1f}" y="{top + 14}" fill="#222">{escape(bar.text)}</text>',
        ]
    return "\n".join([*lines, *marks, "</svg>"]) + "\n"
