"""Plain SVG charts, without a plotting library: grouped bars (Entities, Fig. 2) and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#a463f2")
WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 60, 60


def bar_chart(title: str, categories: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Grouped bars: one group per category, one colour per series."""
    top = nice_top(max((value for values in series.values() for value in values), default=1.0))
    group = (WIDTH - LEFT - RIGHT) / max(len(categories), 1)
    bar = 0.8 * group / max(len(series), 1)
    parts = _frame(title, list(series), 0.0, top)
    for column, category in enumerate(categories):
        parts.append(_text(LEFT + (column + 0.5) * group, HEIGHT - BOTTOM + 18, category, "middle"))
        for series_index, values in enumerate(series.values()):
            x, y = LEFT + column * group + 0.1 * group + series_index * bar, _height(values[column], 0.0, top)
            colour, label = COLOURS[series_index % len(COLOURS)], f"{escape(category)}: {values[column]:g}"
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
                f'fill="{colour}"><title>{label}</title></rect>'
            )
    return _document(parts)


def line_chart(
    title: str, x_label: str, x_values: Sequence[float], series: Mapping[str, Sequence[float]], bottom: float
) -> str:
    """Lines over the same x values; the y axis goes from `bottom` to 100 percent."""
    parts = _frame(title, list(series), bottom, 100.0)
    span = max(x_values) - min(x_values) or 1.0
    positions = [LEFT + 30 + (x - min(x_values)) / span * (WIDTH - LEFT - RIGHT - 60) for x in x_values]
    for x, value in zip(positions, x_values, strict=True):
        parts.append(_text(x, HEIGHT - BOTTOM + 18, f"{value:g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 42, x_label, "middle"))
    for series_index, values in enumerate(series.values()):
        colour = COLOURS[series_index % len(COLOURS)]
        points = [(x, _height(value, bottom, 100.0)) for x, value in zip(positions, values, strict=True)]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
    return _document(parts)


def nice_top(value: float) -> float:
    """A round upper end for an axis that shows this value.

    >>> nice_top(83), nice_top(116_000), nice_top(0)
    (100.0, 150000.0, 1.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0) if step * power >= value)


def _height(value: float, bottom: float, top: float) -> float:
    share = (max(value, bottom) - bottom) / (top - bottom)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _frame(title: str, names: Sequence[str], bottom: float, top: float) -> list[str]:
    """Title, legend, and grid lines with their values."""
    parts = [_text(LEFT, 24, title, "start", "font-weight:bold;font-size:15px")]
    x = float(LEFT)
    for series_index, name in enumerate(names):
        parts.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{COLOURS[series_index % len(COLOURS)]}"/>')
        parts.append(_text(x + 17, 46, name, "start"))
        x += 34 + 7 * len(name)
    for step in range(6):
        value = bottom + step * (top - bottom) / 5
        y = _height(value, bottom, top)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{value:,.6g}", "end"))
    return parts


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    extra = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _document(parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])
