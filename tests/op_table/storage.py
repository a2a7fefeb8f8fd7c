from __future__ import annotations

import ml_dtypes
import numpy as np

from symdnn.ops.array.boxes import KeptBoxes, NonMaxSuppression, nms, non_max_suppression
from symdnn.ops.elementwise.storage import BitCast, Narrow, bitcast, narrow
from tests.op_table.record import OpCase, integers, normal, uniform

X = normal(4, 5, dtype="float32", scale=30.0)


def of(kind):
    return lambda x: np.clip(x, *limits(kind)).astype(getattr(ml_dtypes, kind)).astype("float32")


def limits(kind):
    info = ml_dtypes.finfo(getattr(ml_dtypes, kind))
    return float(info.min), float(info.max)


def powers(x):
    """The next power of 2 above."""
    return np.exp2(np.ceil(np.log2(x))).astype("float32")


def boxes(rng, *shape):
    corner = rng.uniform(0, 4, (*(shape or (2, 7)), 2))
    return np.concatenate([corner, corner + rng.uniform(1, 3, corner.shape)], axis=-1)


def stays(boxes, overlap):
    """Whether each of the boxes of each example stays, the first one first."""
    falling = -np.arange(boxes.shape[1], dtype="float64")
    found = np.zeros(boxes.shape[:2], bool)
    for n, _, b in kept(boxes, np.stack([[falling]] * len(boxes)), len(falling), overlap, -np.inf):
        found[n, b] = True
    return found


def kept(boxes, scores, most, overlap, least):
    """Greedily, box by box."""
    found = []
    for n, c in np.ndindex(scores.shape[:2]):
        chosen = []
        for b in np.argsort(-scores[n, c]):
            apart = all(iou(boxes[n, b], boxes[n, k]) <= overlap for k in chosen)
            if apart and scores[n, c, b] > least and len(chosen) < most:
                chosen.append(b)
        found += [(n, c, b) for b in chosen]
    return np.array(found)


def iou(a, b):
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    common = float(np.prod(np.maximum(sides, 0)))
    return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)


CASES = [
    *(
        OpCase(f"narrow_{kind}", (Narrow,), lambda x, k=kind: narrow(x, k), (X,), of(kind),
               grad=False, options={"single": False})
        for kind in ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn")
    ),
    OpCase(
        "narrow_overflow", (Narrow,), lambda x: narrow(x, "float8_e5m2", saturate=False),
        (lambda rng: np.array([1e9, -1e9, 3.0], "float32"),),
        lambda x: np.array([np.inf, -np.inf, 3.0], "float32"), grad=False,
        options={"single": False},
    ),
    OpCase(
        "narrow_powers", (Narrow,), lambda x: narrow(x, "float8_e8m0fnu"),
        (uniform(0.01, 90, 9, dtype="float32"),), powers, grad=False, options={"single": False},
    ),
    OpCase(
        "bitcast", (BitCast,), lambda x: bitcast(x, "int32"), (X,), lambda x: x.view("int32"),
        grad=False, options={"single": False},
    ),
    OpCase(
        "bitcast_narrow", (BitCast,), lambda x: bitcast(x, "bfloat16").astype("float32"),
        (integers(0, 9000, 3, dtype="uint16"),),
        lambda x: (x.astype("uint32") << 16).view("float32"), grad=False,
    ),
    OpCase(
        "non_max_suppression", (NonMaxSuppression,),
        lambda b, s: non_max_suppression(b, s, 4, 0.2, 0.1),
        (boxes, uniform(0, 1, 2, 3, 7)), lambda b, s: kept(b, s, 4, 0.2, 0.1), grad=False,
    ),
    OpCase("kept_boxes", (KeptBoxes,), lambda b: KeptBoxes(0.2)(b), (boxes,),
           lambda b: stays(b, 0.2), grad=False),
    OpCase("kept_boxes_float32", (KeptBoxes,), lambda b: KeptBoxes(0.3)(b[:, ::-1]),
           (lambda rng: boxes(rng, 3, 50).astype("float32"),), lambda b: stays(b[:, ::-1], 0.3)),
    OpCase("kept_boxes_none", (KeptBoxes,), lambda b: KeptBoxes(0.3)(b), (normal(2, 0, 4),),
           lambda b: np.zeros((2, 0), bool), grad=False),
    OpCase("nms", (KeptBoxes,), lambda b, s: nms(b, s, 0.2),
           (lambda rng: boxes(rng, 1, 30)[0], uniform(0, 1, 30)),
           lambda b, s: kept(b[None], s[None, None], 30, 0.2, 0)[:, 2], grad=False),
]  # fmt: skip
