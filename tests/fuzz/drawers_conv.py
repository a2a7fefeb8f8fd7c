"""Drawers of convolutions that the op table does not draw: adjoints, transposed, separable ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.drawing import Call, Drawer, call
from tests.fuzz.growth import Growth
from tests.fuzz.oracle_conv import Sizes, forward


def _words(g: Growth, d: int, strides: str = "subsample", causal: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"filter_flip": g.chance(0.5)}
    if g.chance(0.5):
        found[strides] = g.of([1, 2]) if d == 1 else tuple(g.integer(1, 2) for _ in range(d))
    if g.chance(0.4):
        found["filter_dilation"] = g.of([1, 2]) if d == 1 else (g.integer(1, 2),) * d
    if not causal:
        found["border_mode"] = g.of(["valid", "full", "half", (1,) * d])
    return found


def _shapes(g: Growth, d: int, words: dict[str, Any]) -> tuple[Sizes, Sizes, Sizes]:
    """Of the input, the filters, the output."""
    b, c, o = (g.integer(1, 3) for _ in range(3))
    kernel = tuple(g.integer(1, 3) for _ in range(d))
    x = (b, c, *(2 * (k - 1) + 1 + g.integer(0, 4) for k in kernel))
    y = forward(np.zeros(x), np.zeros((o, c, *kernel)), **words).shape
    return x, (o, c, *kernel), y


def _new(g: Growth, *shapes: Sizes) -> list[Any]:
    dtype = "float64" if g.dtypes else g.of(["float32", "float64"])
    return [g.fresh(s, dtype, known=1.0) for s in shapes]


def _adjoint(d: int, of: str) -> Drawer:
    """With respect to the images from ``(y, w)``, or to the ``kernels`` from ``(x, y)``."""

    def draw(g: Growth) -> Call:
        words = _words(g, d)
        x, w, y = _shapes(g, d, words)
        given, wanted = ((y, w), x) if of == "images" else ((x, y), w)
        return call(*_new(g, *given), wanted, **words)

    return draw


def _transposed(d: int) -> Drawer:
    def draw(g: Growth) -> Call:
        words = _words(g, d, "input_dilation")
        words["border_mode"] = "valid"
        _, w, _ = _shapes(g, d, words)
        shape = (g.integer(1, 2), w[0], *(g.integer(1, 4) for _ in range(d)))
        return call(*_new(g, shape, w), **words)

    return draw


def _drawn_causal(g: Growth) -> Call:
    words = _words(g, 1, causal=True)
    x, w, _ = _shapes(g, 1, words)
    return call(*_new(g, x, w), **words)


def _drawn_separable(g: Growth) -> Call:
    words = _words(g, 2)
    x, w, _ = _shapes(g, 2, words)
    per, out = g.integer(1, 2), g.integer(1, 3)
    deep, wide = (x[1] * per, 1, *w[2:]), (out, x[1] * per, 1, 1)
    return call(*_new(g, x, deep, wide), x[1], **words)


DRAWERS: dict[str, Drawer] = {
    **{f"conv{d}d_grad_wrt_inputs": _adjoint(d, "images") for d in (1, 2, 3)},
    **{f"conv{d}d_grad_wrt_weights": _adjoint(d, "kernels") for d in (1, 2, 3)},
    **{f"conv{d}d_transpose": _transposed(d) for d in (1, 2, 3)},
    "causal_conv1d": _drawn_causal, "separable_conv2d": _drawn_separable,
}  # fmt: skip
