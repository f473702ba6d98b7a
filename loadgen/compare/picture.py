"""A comparison as an SVG picture: throughput of both classes as a plane, latencies as bars. Pure.

To the right and up is better: batch runs a minute across, interactive ones up, each entry a point at its medians with
its spread over the repeats. Below, an interactive run's latency: p50 and p90 of each entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT = 760, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 44, 24, 48
_BAR_HEIGHT = 14
_ROW_HEIGHT = 2 * _BAR_HEIGHT + 14
_NAME_WIDTH = 150
_COLOURS = ("#5b6b7b", "#9a6fb0", "#d08a2e", "#2f8f6f", "#c24d52", "#3f78c5", "#8a7f3d", "#45a3ad")
_OURS = "#0b62d6"
"""luftpause, wherever it is."""
_GRID = "#e6e6e6"
_TICKS = 5


def draw(report: Mapping[str, Any]) -> str:
    """The picture of a report of `figures.report`."""
    entries: Mapping[str, Any] = report["entries"]
    colours = {name: _OURS if name == "luftpause" else _COLOURS[n % len(_COLOURS)] for n, name in enumerate(entries)}
    latencies = [name for name, of in entries.items() if of.get("interactive", {}).get("run_s_p50")]
    height = _HEIGHT + 60 + _ROW_HEIGHT * len(latencies)
    size = f'width="{_WIDTH}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="12" fill="#222"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} {height}" {font}>',
        f'<rect {size} fill="#fff"/>',
        *_plane(entries, colours),
        *_bars(entries, latencies, colours),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _plane(entries: Mapping[str, Any], colours: Mapping[str, str]) -> Iterator[str]:
    yield _text(_LEFT, 20, "Runs a minute: interactive up, batch across (medians, least to largest)", weight=600)
    across = _scale([_range(of, "batch") for of in entries.values()])
    up = _scale([_range(of, "interactive") for of in entries.values()])

    def x(value: float) -> float:
        return _LEFT + value / across * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / up * (_HEIGHT - _TOP - _BOTTOM)

    for n in range(_TICKS + 1):
        at_x, at_y = across * n / _TICKS, up * n / _TICKS
        yield _line((x(at_x), y(0)), (x(at_x), y(up)), _GRID)
        yield _line((x(0), y(at_y)), (x(across), y(at_y)), _GRID)
        yield _text(x(at_x), _HEIGHT - _BOTTOM + 18, f"{at_x:g}", anchor="middle")
        yield _text(_LEFT - 8, y(at_y) + 4, f"{at_y:g}", anchor="end")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - _BOTTOM + 36, "batch runs/min", anchor="middle")
    yield _text(16, _TOP - 8, "interactive runs/min")
    for name, of in entries.items():
        batch, interactive = _range(of, "batch"), _range(of, "interactive")
        colour = colours[name]
        at_x, at_y = x(batch["median"]), y(interactive["median"])
        yield _line((x(batch["min"]), at_y), (x(batch["max"]), at_y), colour, 1.5)
        yield _line((at_x, y(interactive["min"])), (at_x, y(interactive["max"])), colour, 1.5)
        yield f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="5" fill="{colour}"/>'
        near_right = at_x > _WIDTH - 120
        yield _text(
            at_x + (-9 if near_right else 9), at_y - 7, name, anchor="end" if near_right else "start", fill=colour
        )


def _bars(entries: Mapping[str, Any], names: Sequence[str], colours: Mapping[str, str]) -> Iterator[str]:
    if not names:
        return
    top = _HEIGHT + 20
    yield _text(_LEFT, top, "Latency of an interactive run, s: p50 (full), p90 (pale)", weight=600)
    longest = _scale([entries[name]["interactive"]["run_s_p90"] for name in names])
    for row, name in enumerate(names):
        of = entries[name]["interactive"]
        at = top + 16 + row * _ROW_HEIGHT
        yield _text(_NAME_WIDTH - 8, at + _BAR_HEIGHT + 4, name, anchor="end", fill=colours[name])
        for line, (quantity, opacity) in enumerate((("run_s_p50", 1.0), ("run_s_p90", 0.45))):
            value = of[quantity]["median"]
            width = value / longest * (_WIDTH - _NAME_WIDTH - 70)
            y = at + line * _BAR_HEIGHT
            yield (
                f'<rect x="{_NAME_WIDTH}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT - 2}" '
                f'fill="{colours[name]}" opacity="{opacity}"/>'
            )
            yield _text(_NAME_WIDTH + width + 6, y + 10, f"{value:.1f}")


def _range(of: Mapping[str, Any], run_class: str) -> Mapping[str, float]:
    return of.get(run_class, {}).get("runs_per_min") or {"median": 0.0, "min": 0.0, "max": 0.0}


def _scale(ranges: Sequence[Mapping[str, float]]) -> float:
    """A round number not below any of them, above 0."""
    largest = max((each["max"] for each in ranges), default=0.0)
    step = 1.0
    while step * 10 < largest:
        step *= 10
    while step * 2 > largest > 0:
        step /= 2
    count = 1
    while step * count < largest:
        count += 1
    return step * count or 1.0


def _line(begin: tuple[float, float], end: tuple[float, float], stroke: str, width: float = 1.0) -> str:
    ends = f'x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="{stroke}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = "#222", weight: int = 400) -> str:
    style = f'text-anchor="{anchor}" fill="{fill}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
