"""Suppression of boxes that overlap, as nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Variable
from symdnn.onnx.save.writer import Writer

Emitter = Callable[[Writer, Apply], Any]


def _single(w: Writer, v: Variable) -> str:
    return w.name(v) if v.type.dtype == "float32" else w.cast(w.name(v), "float32")


def _suppression(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    boxes, scores, most, overlap, least = node.inputs
    limits = [w.as_int64(most), _single(w, overlap), _single(w, least)]
    limits = [w.unsqueezed(n, [0]) for n in limits]  # programs write vectors of one number
    return w.add(
        "NonMaxSuppression", _single(w, boxes), _single(w, scores), *limits,
        center_point_box=int(op.centred),
    )  # fmt: skip


def _kept(w: Writer, node: Apply) -> Any:
    """Boxes in falling order have falling scores; those that stay are marked."""
    op: Any = node.op
    (x,) = node.inputs
    whole = w.name(x)
    boxes, count = _single(w, x), w.size(whole, x.ndim - 2)
    boxes = w.add("Reshape", boxes, w.add("Concat", *(
        w.unsqueezed(n, [0]) for n in (w.constant(-1, np.int64), count, w.constant(4, np.int64))
    ), axis=0))  # fmt: skip
    zero, one = (w.constant(v, np.int64) for v in (0, 1))
    order = w.add("Neg", w.cast(w.add("Range", zero, count, one), "float32"))
    examples = w.size(boxes, 0)
    rows = [w.unsqueezed(n, [0]) for n in (examples, one, count)]
    scores = w.add("Expand", order, w.add("Concat", *rows, axis=0))
    found = w.add(
        "NonMaxSuppression", boxes, scores, rows[2], w.constant([op.overlap], np.float32)
    )  # rows (example, 0, box)
    places = w.add("Gather", found, w.constant([0, 2], np.int64), axis=1)
    none = w.add("Expand", zero, w.add("Concat", rows[0], rows[2], axis=0))
    ones = w.add("Expand", one, w.add("Slice", w.shape(places), *(
        w.constant([k], np.int64) for k in (0, 1))))  # fmt: skip
    marks = w.cast(w.add("ScatterND", none, places, ones), "bool")
    shape = w.add("Slice", w.shape(whole), *(w.constant([k], np.int64) for k in (0, -1)))
    return w.add("Reshape", marks, shape)


EMITTERS: dict[str, Emitter] = {"NonMaxSuppression": _suppression, "KeptBoxes": _kept}
