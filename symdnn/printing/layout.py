"""Lays out a drawing: layers of boxes within a region, regions below or beside each other.

The method is the usual one for layered drawings (Sugiyama, Tagawa, Toda 1981): layers by a
topological sort, invisible boxes where an arrow crosses a layer, the order in a layer by the mean
position of neighbours, then positions as near to these means as the widths allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from symdnn.printing.network import Box, Drawing, Group

#: Sizes in pixels: width of a character, height of a line, padding in a box; gaps between boxes,
#: margin of a region, height of its title.
CHARACTER_WIDTH_PX, LINE_HEIGHT_PX, PADDING_PX = 7.0, 16.0, 8.0
GAP_X_PX, GAP_Y_PX, MARGIN_PX, TITLE_HEIGHT_PX = 18.0, 34.0, 14.0, 20.0

#: How often the layers are sorted, alternately down and up.
SORTING_SWEEPS = 6

Arrow = tuple[str, str]
Key = str | tuple[str, str, int]  # a box's key, or (from, to, layer) where an arrow crosses a layer


@dataclass
class Frame:
    """A rectangle; ``x`` and ``y`` are its upper left corner, in pixels."""

    x: float
    y: float
    width: float
    height: float
    title: str = ""


@dataclass
class Layout:
    """Frames of boxes and of regions, and the points that each arrow passes."""

    width: float = 0.0
    height: float = 0.0
    boxes: dict[str, Frame] = field(default_factory=dict)
    regions: list[Frame] = field(default_factory=list)
    bends: dict[Arrow, list[tuple[float, float]]] = field(default_factory=dict)

    def take(self, other: Layout, dx: float, dy: float) -> None:
        """Add all of ``other``, shifted."""
        for key, f in other.boxes.items():
            self.boxes[key] = Frame(f.x + dx, f.y + dy, f.width, f.height)
        for f in other.regions:
            self.regions.append(Frame(f.x + dx, f.y + dy, f.width, f.height, f.title))
        for arrow, points in other.bends.items():
            self.bends[arrow] = [(x + dx, y + dy) for x, y in points]


def lay_out(drawing: Drawing, max_label_size: int = 70) -> Layout:
    """The layout of ``drawing``."""
    sizes = {b.key: _size(b, max_label_size) for b in drawing.boxes.values()}
    return _group(drawing.root, drawing, sizes)


def lines_of(box: Box, max_label_size: int) -> list[str]:
    """The lines of a box's label, cut to a greatest length."""
    return [
        line if len(line) <= max_label_size else line[: max_label_size - 1] + "…"
        for line in box.label.split("\n")
    ]


def _size(box: Box, max_label_size: int) -> tuple[float, float]:
    lines = lines_of(box, max_label_size)
    width = max(len(line) for line in lines) * CHARACTER_WIDTH_PX + 2 * PADDING_PX
    return width, len(lines) * LINE_HEIGHT_PX + PADDING_PX


def _group(group: Group, drawing: Drawing, sizes: Mapping[str, tuple[float, float]]) -> Layout:
    blocks = [_Layers(group.boxes, drawing, sizes).layout()] if group.boxes else []
    blocks += [_group(g, drawing, sizes) for g in group.groups]
    whole = Layout()
    top = MARGIN_PX + (TITLE_HEIGHT_PX if group.title else 0.0)
    x, y = MARGIN_PX, top
    widest = max((b.width for b in blocks), default=len(group.title) * CHARACTER_WIDTH_PX)
    for block in blocks:
        whole.take(block, x if group.beside else MARGIN_PX + (widest - block.width) / 2, y)
        if group.beside:
            x += block.width + GAP_X_PX
        else:
            y += block.height + GAP_Y_PX
    whole.width = x - GAP_X_PX + MARGIN_PX if group.beside and blocks else widest + 2 * MARGIN_PX
    tallest = max((b.height for b in blocks), default=0.0)
    whole.height = (
        top + tallest + MARGIN_PX if group.beside or not blocks else y - GAP_Y_PX + MARGIN_PX
    )
    if group.title:
        whole.regions.insert(0, Frame(0.0, 0.0, whole.width, whole.height, group.title))
    return whole


class _Layers:
    """The boxes of one region in layers, arrows pointing down."""

    def __init__(
        self, keys: Sequence[str], drawing: Drawing, sizes: Mapping[str, tuple[float, float]]
    ) -> None:
        self.sizes = sizes
        inside = set(keys)
        self.arrows = [a for a in drawing.arrows if a[0] in inside and a[1] in inside]
        self.layers = _layers(keys, self.arrows)
        self.up: dict[Key, list[Key]] = {}
        self.down: dict[Key, list[Key]] = {}
        self.paths = {a: self._path(a) for a in self.arrows}

    def _path(self, arrow: Arrow) -> list[Key]:
        """The keys along an arrow, with its ends; makes invisible boxes."""
        at = {key: i for i, layer in enumerate(self.layers) for key in layer}
        first, last = at[arrow[0]], at[arrow[1]]
        path: list[Key] = [arrow[0]]
        for layer in range(first + 1, last):
            path.append((*arrow, layer))
            self.layers[layer].append(path[-1])
        path.append(arrow[1])
        for a, b in pairwise(path):
            self.down.setdefault(a, []).append(b)
            self.up.setdefault(b, []).append(a)
        return path

    def layout(self) -> Layout:
        for sweep in range(SORTING_SWEEPS):
            self._order(downwards=sweep % 2 == 0)
        centres = self._centres()
        found = Layout()
        y = 0.0
        for layer in self.layers:
            height = max(self._height(k) for k in layer)
            for k in layer:
                if not isinstance(k, str):
                    continue
                width, own = self.sizes[k]
                found.boxes[k] = Frame(centres[k] - width / 2, y + (height - own) / 2, width, own)
            for arrow, path in self.paths.items():
                found.bends.setdefault(arrow, [])
                passing = [k for k in path if k in centres and not isinstance(k, str)]
                found.bends[arrow] += [
                    (centres[k], y + height / 2) for k in passing if k in set(layer)
                ]
            y += height + GAP_Y_PX
        return _to_origin(found, y - GAP_Y_PX)

    def _height(self, key: Key) -> float:
        return self.sizes[key][1] if isinstance(key, str) else 0.0

    def _width(self, key: Key) -> float:
        return self.sizes[key][0] if isinstance(key, str) else CHARACTER_WIDTH_PX

    def _order(self, downwards: bool) -> None:
        """Sort each layer by the mean position of the neighbours in the previous layer."""
        neighbours = self.up if downwards else self.down
        layers = self.layers if downwards else self.layers[::-1]
        for before, layer in pairwise(layers):
            place = {k: i for i, k in enumerate(before)}
            mean = {
                k: _mean([place[n] for n in neighbours.get(k, ()) if n in place], default=i)
                for i, k in enumerate(layer)
            }
            layer.sort(key=lambda k: mean[k])

    def _centres(self) -> dict[Key, float]:
        centres: dict[Key, float] = {}
        for layer in self.layers:
            self._place(layer, [0.0] * len(layer), centres)
        for sweep in range(SORTING_SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.up if down else self.down
            for layer in self.layers if down else self.layers[::-1]:
                wanted = [
                    _mean([centres[n] for n in neighbours.get(k, ())], default=centres[k])
                    for k in layer
                ]
                self._place(layer, wanted, centres)
        return centres

    def _place(
        self, layer: Sequence[Key], wanted: Sequence[float], centres: dict[Key, float]
    ) -> None:
        """Positions as near to ``wanted`` as order and widths allow."""
        right = None
        for k, want in zip(layer, wanted):
            half = self._width(k) / 2
            centres[k] = want if right is None else max(want, right + GAP_X_PX + half)
            right = centres[k] + half
        shift = _mean([w - centres[k] for k, w in zip(layer, wanted)], default=0.0)
        for k in layer:
            centres[k] += shift


def _layers(keys: Sequence[str], arrows: Sequence[Arrow]) -> list[list[Key]]:
    """Layers that are as low as the readers of each box allow, so that leaves are near them."""
    import networkx

    backward = networkx.DiGraph()
    backward.add_nodes_from(keys)
    backward.add_edges_from((b, a) for a, b in arrows)
    place = {k: i for i, k in enumerate(keys)}
    generations = list(networkx.topological_generations(backward))
    return [sorted(g, key=place.__getitem__) for g in reversed(generations)]  # type: ignore[arg-type]


def _to_origin(found: Layout, height: float) -> Layout:
    left = min(f.x for f in found.boxes.values())
    edges = [f.x + f.width for f in found.boxes.values()]
    for points in found.bends.values():
        left = min([left, *(x for x, _ in points)])
        edges += [x for x, _ in points]
    moved = Layout(max(edges) - left, height)
    moved.take(found, -left, 0.0)
    return moved


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else float(default)
