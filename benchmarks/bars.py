"""Bars as SVG, written by hand: small, no dependency, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LABEL, _ROW, _TOP, _GAP = 420, 165, 22, 34, 14
_COLOURS = {"ours": "#00796b", "base": "#607d8b", "peer": "#b0bec5"}


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        label: What it stands for.
        value: Its length.
        kind: `ours`, `base` or `peer`: its colour.
    """

    label: str
    value: float
    kind: str = "peer"


@dataclass(frozen=True)
class Panel:
    """Bars that share a scale."""

    title: str
    bars: Sequence[Bar]


def svg(panels: Sequence[Panel], caption: str, columns: int = 2) -> str:
    """Panels in columns, with a caption below them."""
    heights = [_TOP + _ROW * len(panel.bars) + _GAP for panel in panels]
    rows = [max(heights[start : start + columns]) for start in range(0, len(heights), columns)]
    width, height = _WIDTH * min(columns, max(1, len(panels))), sum(rows) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(caption)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        x, y = number % columns * _WIDTH, sum(rows[: number // columns])
        parts.append(f'<g transform="translate({x} {y})">{_panel(panel)}</g>')
    parts.append(f'<text x="10" y="{height - 10}" fill="#555555">{escape(caption)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> str:
    longest = max((bar.value for bar in panel.bars), default=0.0) or 1.0
    room = _WIDTH - _LABEL - 60
    parts = [f'<text x="10" y="20" font-weight="bold" fill="#222222">{escape(panel.title)}</text>']
    for number, bar in enumerate(panel.bars):
        y = _TOP + number * _ROW
        length = room * bar.value / longest
        parts.append(
            f'<text x="{_LABEL - 6}" y="{y + 13}" text-anchor="end" fill="#222222">{escape(bar.label)}</text>'
            f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_ROW - 6}" fill="{_COLOURS[bar.kind]}"/>'
            f'<text x="{_LABEL + length + 5:.1f}" y="{y + 13}" fill="#222222">{bar.value:.2f}</text>'
        )
    return "\n".join(parts)
