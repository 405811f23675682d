"""The distributions of latency by policy, as an SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _BOTTOM = 430, 300, 60, 50, 70, 70
_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#edae49", "#6f4e7c")


def svg(title: str, panels: dict[str, dict[str, Sequence[float]]]) -> str:
    """Cumulative distributions: `panels` by latency, then by policy the quantiles from 0 to 1, in milliseconds."""
    width = _LEFT + len(panels) * (_WIDTH + _GAP)
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for index, (name, curves) in enumerate(panels.items()):
        parts += _panel(name, curves, _LEFT + index * (_WIDTH + _GAP))
    for index, name in enumerate(dict.fromkeys(name for curves in panels.values() for name in curves)):
        x, y = _LEFT + 130 * index, height - 14
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" {_stroke(index)}/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(name: str, curves: dict[str, Sequence[float]], left: float) -> list[str]:
    values = [value for curve in curves.values() for value in curve if value > 0]
    if not values:
        return []
    low, high = math.log10(min(values)) - 0.02, math.log10(max(values)) + 0.02

    def x(value: float) -> float:
        return left + _WIDTH * (math.log10(max(value, 10**low)) - low) / (high - low)

    def y(share: float) -> float:
        return _TOP + _HEIGHT * (1 - share)

    parts = [f'<text x="{left}" y="{_TOP - 10}">{escape(name)}, share of requests at or below, by ms (log)</text>']
    for share in (0, 0.5, 0.9, 0.99):
        parts.append(f'<line x1="{left}" y1="{y(share):.1f}" x2="{left + _WIDTH}" y2="{y(share):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for tick in _ticks(low, high):
        parts.append(f'<line x1="{x(tick):.1f}" y1="{_TOP}" x2="{x(tick):.1f}" y2="{y(0):.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{y(0) + 16:.1f}" text-anchor="middle">{tick:g}</text>')
    for index, curve in enumerate(curves.values()):
        points = " ".join(f"{x(value):.1f},{y(rank / max(1, len(curve) - 1)):.1f}" for rank, value in enumerate(curve))
        parts.append(f'<polyline points="{points}" fill="none" {_stroke(index)}/>')
    return parts


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


def _stroke(index: int) -> str:
    return f'stroke="{_COLOURS[index % len(_COLOURS)]}" stroke-width="2"'
