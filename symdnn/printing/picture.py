"""``pydotprint``: a picture of any stage as SVG (without other programs), DOT, PNG or PDF."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from symdnn.printing.layout import (
    CHARACTER_WIDTH_PX,
    LINE_HEIGHT_PX,
    PADDING_PX,
    Frame,
    Layout,
    lay_out,
    lines_of,
)
from symdnn.printing.network import Box, Drawing, Group, drawing_of


class Svg(str):
    """The text of an SVG picture, which a notebook shows as a picture."""

    def _repr_svg_(self) -> str:
        return str(self)


class Png(bytes):
    """A PNG picture, which a notebook shows as a picture."""

    def _repr_png_(self) -> bytes:
        return bytes(self)


FILL = {
    "op": "#e8eef7",
    "input": "#d9f0d3",
    "shared": "#fde8c8",
    "constant": "#f2f2f2",
    "output": "#d7c7e8",
}


def pydotprint(
    fct: object,
    outfile: str | os.PathLike[str] | None = None,
    format: str | None = None,
    *,
    max_label_size: int = 70,
    engine: str = "auto",
    return_image: bool = False,
    print_output_file: bool = False,
    sizes: bool = False,
) -> Any:
    """Write a picture of an expression, a compiled function, or a stage of compiling one.

    ``format`` is svg, dot, png, pdf, ...; by default the suffix of ``outfile`` says it, else svg.
    A program's regions are frames around their nodes, a plan's nodes show shapes and kernels.
    Nodes that only compute sizes are left out unless ``sizes`` is true.
    ``engine`` is ``"symdnn"`` (our own layout: svg and dot need no other package, the rest needs
    matplotlib), ``"dot"`` (Graphviz), or ``"auto"``: Graphviz where it is found. The
    result is the path, or with ``return_image`` (or without ``outfile``) the picture itself: text
    for svg and dot, else bytes; a notebook draws svg and png.

    Raises ``RuntimeError`` for ``engine="dot"`` without Graphviz, ``ValueError`` for an unknown
    format.
    """
    if engine not in ("auto", "symdnn", "dot"):
        raise ValueError(f"engine={engine!r}: wanted auto, symdnn or dot")
    kind = format or (Path(outfile).suffix[1:] if outfile is not None else "") or "svg"
    image = _render(drawing_of(fct, sizes), kind, max_label_size, engine)
    if outfile is not None:
        data = image.encode() if isinstance(image, str) else image
        Path(outfile).write_bytes(data)
        if print_output_file:
            print(f"The picture is in {outfile}")
    if not return_image and outfile is not None:
        return Path(outfile)
    return _shown(image, kind)


def _shown(image: str | bytes, kind: str) -> str | bytes:
    """The picture, as a type that a notebook draws if there is one for the format."""
    if isinstance(image, str):
        return Svg(image) if kind == "svg" else image
    return Png(image) if kind == "png" else image


def _render(drawing: Drawing, kind: str, max_label_size: int, engine: str) -> str | bytes:
    if kind == "dot":
        return to_dot(drawing, max_label_size)
    graphviz = shutil.which("dot")
    if engine == "dot" or (engine == "auto" and graphviz):
        if graphviz is None:
            raise RuntimeError(
                "pydotprint: engine='dot' needs Graphviz's program dot, which is not on the PATH. "
                "Install it, or use engine='symdnn', which needs nothing for svg and dot"
            )
        image = _by_graphviz(graphviz, to_dot(drawing, max_label_size), kind)
        return image.decode() if kind == "svg" else image
    if kind == "svg":
        return to_svg(drawing, max_label_size)
    return _by_matplotlib(drawing, kind, max_label_size)


def _by_graphviz(program: str, text: str, kind: str) -> bytes:
    # The program and not the package pydot, which would parse this text to write it again.
    done = subprocess.run([program, f"-T{kind}"], input=text.encode(), capture_output=True)
    if done.returncode:
        raise RuntimeError(f"pydotprint: {program} -T{kind} failed: {done.stderr.decode().strip()}")
    return done.stdout


def _by_matplotlib(drawing: Drawing, kind: str, max_label_size: int) -> bytes:
    """The same picture as the SVG, by matplotlib, as png, pdf and other formats."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle
    from matplotlib.path import Path as Curve

    layout = lay_out(drawing, max_label_size)
    figure = Figure(figsize=(layout.width / 72, layout.height / 72), dpi=100)
    canvas = FigureCanvasAgg(figure)
    wanted = kind.lower()
    if wanted not in canvas.get_supported_filetypes():
        known = ", ".join(sorted({"svg", "dot", *canvas.get_supported_filetypes()}))
        raise ValueError(f"pydotprint: format {kind!r}: wanted one of {known}")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, layout.width), ylim=(layout.height, 0))
    axes.set_axis_off()
    font: dict[str, Any] = {"family": "monospace", "fontsize": 8.5}
    for f in layout.regions:
        axes.add_patch(Rectangle((f.x, f.y), f.width, f.height, fill=False, ec="#999", ls="--"))
        axes.text(f.x + 8, f.y + 15, f.title, **font)
    for a, b in drawing.arrows:
        points = _points(layout.boxes[a], layout.boxes[b], layout.bends.get((a, b), []))
        axes.add_patch(PathPatch(Curve(*_codes(points)), fill=False, ec="#555", lw=0.8))
        axes.plot(*points[-1], marker=(3, 0, 180), ms=5, color="#555")
    for box in drawing.boxes.values():
        f = layout.boxes[box.key]
        style = f"round,pad=0,rounding_size={4 if box.kind in ('op', 'output') else 12}"
        place = ((f.x, f.y), f.width, f.height)
        axes.add_patch(FancyBboxPatch(*place, boxstyle=style, fc=FILL[box.kind], ec="#555"))
        text = "\n".join(lines_of(box, max_label_size))
        axes.text(f.x + f.width / 2, f.y + f.height / 2, text, ha="center", va="center", **font)
    out = io.BytesIO()
    figure.savefig(out, format=wanted)
    return out.getvalue()


def _codes(points: list[tuple[float, float]]) -> tuple[list[tuple[float, float]], list[int]]:
    """Bezier curves through ``points`` as matplotlib's vertices and codes."""
    move, curve = 1, 4
    vertices, codes = [points[0]], [move]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        vertices += [(x0, middle), (x1, middle), (x1, y1)]
        codes += [curve] * 3
    return vertices, codes


# --- SVG ------------------------------------------------------------------------------------------


def to_svg(drawing: Drawing, max_label_size: int = 70) -> str:
    """The drawing as SVG, laid out here. Equal drawings give equal texts."""
    return "\n".join(_svg(drawing, lay_out(drawing, max_label_size), max_label_size)) + "\n"


def _svg(drawing: Drawing, layout: Layout, max_label_size: int) -> Iterator[str]:
    width, height = _n(layout.width), _n(layout.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="11.5">'
    )
    yield (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>'
    )
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    for region in layout.regions:
        yield _rectangle(region, "none", 'stroke="#999" stroke-dasharray="5 3"')
        yield f'<text x="{_n(region.x + 8)}" y="{_n(region.y + 15)}">{_text(region.title)}</text>'
    for (a, b), attributes in drawing.arrows.items():
        points = _points(layout.boxes[a], layout.boxes[b], layout.bends.get((a, b), []))
        title = f"<title>{_text(attributes['type'])}</title>"
        yield (
            f'<path d="{_curve(points)}" fill="none" stroke="#555" marker-end="url(#tip)">'
            f"{title}</path>"
        )
    for box in drawing.boxes.values():
        yield from _svg_box(box, layout.boxes[box.key], max_label_size)
    yield "</svg>"


def _svg_box(box: Box, frame: Frame, max_label_size: int) -> Iterator[str]:
    rounding = "12" if box.kind in ("input", "shared", "constant") else "3"
    yield f'<g class="{box.kind}">'
    yield f"<title>{_text(_tip(box))}</title>"
    yield _rectangle(frame, FILL[box.kind], f'stroke="#555" rx="{rounding}"')
    for i, line in enumerate(lines_of(box, max_label_size)):
        x = frame.x + frame.width / 2 - len(line) * CHARACTER_WIDTH_PX / 2
        y = frame.y + PADDING_PX / 2 + (i + 0.75) * LINE_HEIGHT_PX
        yield f'<text x="{_n(x)}" y="{_n(y)}">{_text(line)}</text>'
    yield "</g>"


def _tip(box: Box) -> str:
    """The text of a box's tooltip."""
    shown = ("type", "name", "hints", "origin")
    facts = [f"{k}: {box.attributes[k]}" for k in shown if box.attributes.get(k)]
    return "\n".join([box.label, *facts])


def _rectangle(f: Frame, fill: str, rest: str) -> str:
    place = f'x="{_n(f.x)}" y="{_n(f.y)}" width="{_n(f.width)}" height="{_n(f.height)}"'
    return f'<rect {place} fill="{fill}" {rest}/>'


def _points(a: Frame, b: Frame, bends: list[tuple[float, float]]) -> list[tuple[float, float]]:
    start = (a.x + a.width / 2, a.y + a.height)
    return [start, *bends, (b.x + b.width / 2, b.y)]


def _curve(points: list[tuple[float, float]]) -> str:
    parts = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        parts.append(f"C{_n(x0)} {_n(middle)} {_n(x1)} {_n(middle)} {_n(x1)} {_n(y1)}")
    return " ".join(parts)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(value: object) -> str:
    from html import escape

    return escape(str(value), quote=True)


# --- DOT ------------------------------------------------------------------------------------------


def to_dot(drawing: Drawing, max_label_size: int = 70) -> str:
    """The drawing in Graphviz's language, regions as clusters."""
    lines = ["digraph {", '  node [shape=box, style=filled, fontname="monospace"];']
    lines += _dot_group(drawing.root, drawing, "  ", "c", max_label_size)
    for (a, b), attributes in drawing.arrows.items():
        lines.append(f"  {a} -> {b} [tooltip={_quoted(attributes['type'])}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_group(
    group: Group, drawing: Drawing, pad: str, name: str, max_label_size: int
) -> Iterator[str]:
    for key in group.boxes:
        box = drawing.boxes[key]
        label = _quoted("\n".join(lines_of(box, max_label_size)))
        yield f'{pad}{key} [label={label}, fillcolor="{FILL[box.kind]}"];'
    for i, inner in enumerate(group.groups):
        inner_name = f"{name}_{i}"
        if not inner.title:
            yield from _dot_group(inner, drawing, pad, inner_name, max_label_size)
            continue
        yield f"{pad}subgraph cluster_{inner_name} {{"
        yield f"{pad}  label={_quoted(inner.title)};"
        yield from _dot_group(inner, drawing, pad + "  ", inner_name, max_label_size)
        yield f"{pad}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
