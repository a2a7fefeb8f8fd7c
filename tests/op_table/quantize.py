"""Quantised numbers: codes of 8 bits, and the floats that they stand for."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np

from symdnn.ops.elementwise.quantize import Dequantize, Quantize, dequantize, quantize
from tests.op_table.record import OpCase, integers, normal

X = normal(4, 5, dtype="float32", scale=3.0)
ROWS = np.array([0.1, 0.02, 0.5, 1.0], "float32")
BLOCKS = np.array([[0.1, 0.2]] * 4, "float32")


def codes(x, scale, zero, low, high):
    return np.clip(np.rint(x / np.float32(scale)) + zero, low, high)


def float8(kind):
    most = float(ml_dtypes.finfo(getattr(ml_dtypes, kind)).max)
    return lambda x: np.clip(x * 100, -most, most).astype(getattr(ml_dtypes, kind))


def corners(rng):
    """Ties, the least and the largest numbers, both zeros, numbers without normal exponent."""
    return np.array([0.0, -0.0, 2**-10, -(2**-9), 2**-16, 1.5 * 2**-16, 17, 19, -464, 1e9], "f4")


CASES = [
    OpCase("quantize_int8", (Quantize,), lambda x: quantize(x, 0.02, 3), (X,),
           lambda x: codes(x, 0.02, 3, -128, 127).astype("int8"), grad=False),
    OpCase("quantize_uint8_rows", (Quantize,),
           lambda x: quantize(x, ROWS, np.full(4, 7, "uint8"), "uint8", axis=0), (X,),
           lambda x: codes(x, ROWS[:, None], 7, 0, 255).astype("uint8"), grad=False),
    OpCase("quantize_int4_blocks", (Quantize,),
           lambda x: quantize(x, BLOCKS, dtype="int4", axis=1, block=3), (X,),
           lambda x: codes(x, np.repeat(BLOCKS, 3, 1)[:, :5], 0, -8, 7).astype("int8"), grad=False,
           static=((4, 5),)),
    OpCase("quantize_bfloat16", (Quantize,), lambda x: quantize(x, 0.05),
           (normal(4, 5, dtype="bfloat16"),),
           lambda x: codes(x.astype("f4"), 0.05, 0, -128, 127).astype("int8"), grad=False),
    *(
        OpCase(f"quantize_{kind}_{name}", (Quantize,),
               lambda x, k=kind: quantize(x, 0.01, dtype=k), (draw,),
               lambda x, k=kind: float8(k)(x).view("uint8"), grad=False)
        for kind in ("float8_e4m3fn", "float8_e5m2")
        for name, draw in (("normal", normal(4, 5, dtype="float32")),)
    ),
    *(
        OpCase(f"dequantize_{kind}", (Dequantize,),
               lambda q, k=kind: dequantize(q, 0.25, dtype=k),
               (lambda rng: np.arange(256, dtype="uint8"),),
               lambda q, k=kind: q.view(getattr(ml_dtypes, k)).astype("f4") * np.float32(0.25),
               grad=False)
        for kind in ("float8_e4m3fn", "float8_e5m2")
    ),
    OpCase("dequantize_columns", (Dequantize,),
           lambda q: dequantize(q, np.float32([0.5, 0.25, 2]), np.int8([1, 0, -128]), axis=1),
           (integers(-128, 128, 4, 3, dtype="int8"),),
           lambda q: (q.astype("f4") - np.float32([1, 0, -128])) * np.float32([0.5, 0.25, 2]),
           grad=False),
    OpCase("dequantize_int32", (Dequantize,), lambda q: dequantize(q, 1e-3, out="bfloat16"),
           (integers(-9000, 9000, 7, dtype="int32"),),
           lambda q: (q * np.float32(1e-3)).astype("bfloat16"), grad=False, rtol=1e-2),
    OpCase("dequantize_scale", (Dequantize,), partial(dequantize, zero_point=3),
           (integers(-128, 128, 4, 3, dtype="int8"), normal()),
           lambda q, s: (q.astype("f4") - 3) * s.astype("f4"), rtol=1e-5, grad=False),
]  # fmt: skip
