"""Flame graphs: stacks of frames as an SVG picture (Gregg 2016)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

#: Sizes in pixels: the picture, a frame, a character. Narrower frames have no text, or no box.
WIDTH_PX, ROW_PX, CHARACTER_PX, LEAST_TEXT_PX, LEAST_BOX_PX = 1200.0, 19.0, 6.7, 30.0, 0.15
#: Hues of frames, in degrees from red to yellow.
_FIRST_HUE, _HUES = 8, 44


@dataclass
class _Frame:
    seconds: float = 0.0
    inner: dict[str, _Frame] = field(default_factory=dict)


def flame_graph(stacks: Mapping[tuple[str, ...], float]) -> str:
    """An SVG picture of seconds by stack: the outermost frame below, widths are times.

    A frame's tooltip has its whole name, its time and its share.
    """
    root = _Frame()
    for stack, seconds in stacks.items():
        root.seconds += seconds
        at = root
        for name in stack:
            at = at.inner.setdefault(name, _Frame())
            at.seconds += seconds
    depth = max(map(len, stacks), default=0)
    height = (depth + 1) * ROW_PX
    boxes = "".join(_boxes(root, 0.0, height - ROW_PX, root.seconds))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX:g} {height:g}" '
        f'font-family="monospace" font-size="11">'
        f'<rect width="{WIDTH_PX:g}" height="{height:g}" fill="#fffdf8"/>{boxes}</svg>\n'
    )


def _boxes(frame: _Frame, left: float, bottom: float, whole: float) -> Iterator[str]:
    """The boxes of what is called in a frame, from the most expensive."""
    for name, inner in sorted(frame.inner.items(), key=lambda kv: -kv[1].seconds):
        width = WIDTH_PX * inner.seconds / whole if whole else 0.0
        if width >= LEAST_BOX_PX:
            yield _box(name, inner.seconds, whole, left, bottom, width)
            yield from _boxes(inner, left, bottom - ROW_PX, whole)
        left += width


def _box(name: str, seconds: float, whole: float, left: float, bottom: float, width: float) -> str:
    from html import escape

    hue = _FIRST_HUE + zlib.crc32(name.encode()) % _HUES
    tip = escape(f"{name}: {seconds * 1e3:.3f} ms, {100 * seconds / whole:.1f} %")
    shown = name[: int((width - 8) / CHARACTER_PX)] if width >= LEAST_TEXT_PX else ""
    return (
        f'<g><title>{tip}</title><rect x="{left:.2f}" y="{bottom:g}" width="{width:.2f}" '
        f'height="{ROW_PX - 1:g}" rx="2" fill="hsl({hue} 85% 66%)"/>'
        f'<text x="{left + 4:.2f}" y="{bottom + 13:g}">{escape(shown)}</text></g>'
    )
