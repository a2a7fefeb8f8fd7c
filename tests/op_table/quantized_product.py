"""Products of quantised numbers: their exact sums, and what follows the sums."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.nn.conv import Conv
from symdnn.ops.quantized.product import QuantizedProduct, integer_product
from symdnn.ops.vendor.onednn import OneDnnQuantized
from tests.op_table.record import OpCase, integers

SIGNED, UNSIGNED = (integers(-128, 128, 4, 6, dtype="int8"), integers(0, 256, 4, 6, dtype="uint8"))
W = integers(-127, 128, 6, 5, dtype="int8")
IMAGES, FILTERS = (
    integers(0, 256, 2, 3, 6, 6, dtype="uint8"),
    integers(-127, 128, 4, 3, 3, 3, dtype="int8"),
)
CONV = Conv(((1, 1), (1, 1)), (1, 1), (1, 1))
SCALES = np.float32([0.01, 0.02, 0.005, 0.03, 0.001])


def sums(x, w, zero=0):
    return (x.astype("int64") - zero) @ w.astype("int64")


def conv_sums(x, w, zero):
    """Window by window."""
    padded = np.pad(x.astype("int64") - zero, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwij,kcij->nkhw", windows, w.astype("int64"))


def product(op, terms, values, **settings):
    made = QuantizedProduct(op, terms, **settings)
    return lambda x, w, *rest: made(x, w, *rest, *values)


def rounded(y, scale, zero, low=-128, high=127):
    return np.clip(np.rint(y / np.float32(scale)) + zero, low, high)


TERMS = ("x_zero", "x_scale", "w_scale", "bias", "y_scale", "y_zero")
BIAS = np.float32([1, -2, 0.5, 3, 0])
VALUES = (np.int32(7), np.float32(0.02), SCALES, BIAS, np.float32(0.1), np.int32(3))
CONV_VALUES = (np.int32(99), np.float32(0.02), SCALES[:4], BIAS[:4], np.float32(0.5), np.int32(-3))


LAYER = QuantizedProduct(Dot(), TERMS, "int8", relu=True)


def wanted(x, w):
    y = np.float32(sums(x, w, 7)) * (np.float32(0.02) * SCALES) + BIAS
    return rounded(np.maximum(y, 0), 0.1, 3).astype("int8")


def wanted_of_conv(x, w, z):
    scale = (np.float32(0.02) * SCALES[:4])[:, None, None]
    y = np.float32(conv_sums(x, w, 99)) * scale + BIAS[:4, None, None]
    y = np.maximum(y + (z.astype("f4") - 5) * np.float32(0.25), 0)
    return rounded(y, 0.5, -3).astype("int8")


def conv_of(kind):
    terms = ("x_zero", "x_scale", "w_scale", "bias", "z", "y_scale", "y_zero")
    op = QuantizedProduct(CONV, terms, "int8", relu=True, z_scale=0.25, z_zero=5)
    made = op if kind is QuantizedProduct else OneDnnQuantized(op)
    first, last = CONV_VALUES[:4], CONV_VALUES[4:]
    return lambda x, w, z: made(x, w, *first, z, *last)


def float8(x, w):
    a, b = (v.view(ml_dtypes.float8_e4m3fn).astype("f4") for v in (x, w))
    return a @ b * np.float32(0.5)


FINITE = [integers(0, 120, *shape, dtype="uint8") for shape in ((4, 6), (6, 5))]

CASES = [
    OpCase("integer_matmul", (QuantizedProduct,), lambda x, w: integer_product(Dot(), x, w, 3),
           (SIGNED, W), lambda x, w: sums(x, w, 3).astype("int32"), grad=False),
    OpCase("integer_matmul_columns", (QuantizedProduct,),
           lambda x, w: integer_product(Dot(), x, w, None, np.int8([1, 2, 3, 4, 5])),
           (UNSIGNED, W), lambda x, w: sums(x, w - np.arange(1, 6)).astype("int32"), grad=False),
    OpCase("integer_batched", (QuantizedProduct,),
           lambda x, w: integer_product(BatchedDot(), x, w),
           (integers(-128, 128, 3, 4, 6, dtype="int8"), integers(-128, 128, 3, 6, 5, dtype="int8")),
           lambda x, w: sums(x, w).astype("int32"), grad=False),
    OpCase("integer_conv", (QuantizedProduct,), lambda x, w: integer_product(CONV, x, w, 99),
           (IMAGES, FILTERS), lambda x, w: conv_sums(x, w, 99).astype("int32"), grad=False),
    OpCase("quantized_matmul", (QuantizedProduct,),
           product(Dot(), TERMS, VALUES, out="int8", relu=True), (SIGNED, W), wanted, grad=False),
    *(
        OpCase(f"quantized_conv_{kind.__name__}", (kind,), conv_of(kind),
               (IMAGES, FILTERS, integers(-128, 128, 2, 4, 6, 6, dtype="int8")), wanted_of_conv,
               grad=False)
        for kind in (QuantizedProduct, OneDnnQuantized)
    ),
    OpCase("onednn_quantized_matmul", (OneDnnQuantized,),
           lambda x, w: OneDnnQuantized(LAYER)(x, w, *VALUES),
           (UNSIGNED, W), wanted, grad=False),
    OpCase("float8_matmul", (QuantizedProduct,),
           product(Dot(), ("x_scale", "w_scale"), (np.float32(2), np.float32(0.25)), out="float32",
                   kinds=("float8_e4m3fn",) * 2),
           FINITE, float8, rtol=1e-5, grad=False),
]  # fmt: skip
