"""Exact sums of products of 8-bit numbers: what is refused, and sums that float32 cannot hold."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.nn.conv import Conv
from symdnn.ops.quantized.product import integer_product

CONV = Conv(((1, 1),) * 2, (1, 1), (1, 1), 1, False)


@pytest.mark.parametrize("entries", [3, 5])
@pytest.mark.parametrize("op", [Dot(), CONV], ids=str)
@pytest.mark.parametrize("optimizer", ["fast_run", None])
def test_zero_points_for_other_channels_are_refused(op, entries, optimizer):
    ndim, few, mode = 4 if op == CONV else 2, (1,) * 4, symdnn.Mode(optimizer=optimizer)
    zero = T.tensor("int8", (None,), name="zero")
    w = T.tensor("int8", (None,) * ndim, name="w")
    y = integer_product(op, T.tensor("int8", (None,) * ndim, name="x"), w, None, zero)
    f = symdnn.function([y.owner.inputs[0], w, zero], y, mode=mode)
    with pytest.raises(symdnn.errors.ShapeMismatch):
        f(np.ones(few[:ndim], "int8"), np.ones(few[:ndim], "int8"), np.ones(entries, "int8"))
    static = np.ones(few[:ndim], "int8")
    with pytest.raises(symdnn.errors.ShapeMismatch, match=f"each of the 1 .* {entries} entries"):
        integer_product(op, static, static, None, np.ones(entries, "int8"))


@pytest.mark.parametrize("zero", [1, 131, 255])
@pytest.mark.parametrize("name", ["product", "stack", "images", "padded", "1x1", "few terms"])
def test_int32_sums_beyond_float32_are_exact(name, zero):
    """On this machine's target: sums of codes far from the zero point, all of one sign."""
    x_shape, w_shape, op = {
        "product": ((3, 1201), (1201, 7), Dot()),
        "stack": ((2, 3, 1201), (2, 1201, 7), BatchedDot()),
        "images": ((2, 140, 4, 5), (6, 140, 3, 3), Conv(((0, 0),) * 2, (1, 1), (1, 1))),
        "padded": ((2, 140, 4, 5), (6, 140, 3, 3), Conv(((1, 1), (0, 2)), (2, 1), (1, 1))),
        "1x1": ((2, 1201, 4, 5), (6, 1201, 1, 1), Conv(((0, 0),) * 2, (1, 1), (1, 1))),
        "few terms": ((3, 500), (500, 7), Dot()),
    }[name]
    x, w = T.tensor("uint8", x_shape, name="x"), T.tensor("int8", w_shape, name="w")
    y = integer_product(op, x, w, zero)
    f = symdnn.function([x, w], y)
    for code in (0, 254, 255):
        codes = np.full(x_shape, code, "uint8")
        codes.flat[::7] = 0 if zero > 100 else 255
        weights = np.full(w_shape, -128, "int8")
        weights.flat[::3] = -127
        wanted = y.owner.op.reference(codes, weights, np.int32(zero))
        np.testing.assert_array_equal(f(codes, weights), wanted)
