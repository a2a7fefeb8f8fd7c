"""Activation functions of epilogues at values that libraries treat carelessly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.cpu.onednn.activated import ActivatedLaunch, runs_apart
from symdnn.cpu.onednn.conv import ConvKernel, post_ops
from symdnn.cpu.onednn.matmul import MatmulKernel
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.nn.conv import Conv
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnMatmul
from tests.cpu.harness import call_of, type_of
from tests.cpu.onednn.test_sixteen_bits import needs_bfloat16

FUNCTIONS = {
    "none": lambda x: x, "relu": T.nnet.relu, "relu6": nn.ReLU6(), "sigmoid": T.nnet.sigmoid,
    "tanh": T.tanh, "softplus": T.nnet.softplus, "gelu": nn.GELU(),
    "gelu_tanh": lambda x: T.nnet.gelu(x, approximate="tanh"), "hardsigmoid": nn.HardSigmoid(),
    "hardswish": nn.HardSwish(), "silu": nn.SiLU(), "elu": T.nnet.elu,
    "clip": lambda x: T.clip(x, 0, 6), "max of min": lambda x: T.maximum(T.minimum(x, 6), 0),
}  # fmt: skip
#: NaN, infinities, zeros, the largest numbers, and tails down to the smallest normal results.
VALUES = np.array(
    [np.nan, np.inf, -np.inf, -0.0, 0.0, 3e38, -3e38, 1e30, -1e30, 1e-30, -1e-30, 100, 20, 5, 1,
     -1, -5, -10, -13, -20, -40, -80, -110, -1000], "float32")  # fmt: skip
PRODUCTS = {
    "dot": ((16, 64), (64, 48), 1), "large dot": ((64, 512), (512, 48), 1),
    "conv": ((2, 64, 8, 8), (48, 64, 1, 1), 1), "conv of 3": ((2, 3, 16, 16), (48, 3, 3, 3), 1),
    "winograd": ((2, 64, 24, 24), (48, 64, 3, 3), 1),
    "depthwise": ((2, 48, 16, 16), (48, 1, 3, 3), 48),
}  # fmt: skip


def product(kind: str, dtype: str, name: str) -> tuple[Any, Any, Any, Any]:
    """(argument, shared filters, shared biases, the result in float32) of a fused product."""
    x_shape, w_shape, groups = PRODUCTS[kind]
    x = T.tensor("float32", (None,) * len(x_shape), name="x")
    w, b = (symdnn.shared(np.zeros(s, "f")) for s in (w_shape, 48))
    operands = x.astype(dtype), w.astype(dtype), b.astype(dtype)
    if len(x_shape) == 2:
        y = T.dot(*operands[:2]) + operands[2]
    else:
        y = T.nnet.conv2d(*operands[:2], num_groups=groups)
        y = y + operands[2].dimshuffle("x", 0, "x", "x")
    return x, w, b, FUNCTIONS[name](y).astype("float32")


@pytest.mark.parametrize("kind", list(PRODUCTS))
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_an_epilogue_is_the_function_everywhere(name: str, dtype: str, kind: str) -> None:
    x, _, b, y = product(kind, dtype, name)
    b.set_value(np.resize(VALUES, 48))
    given = np.zeros(PRODUCTS[kind][0], "f")
    got = symdnn.function([x], y)(given)
    wanted = symdnn.function([x], y, mode="FAST_COMPILE")(given)
    # Results in tails are right to some digits each; those below 1e-35 may be 0.
    rtol = 5e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=1e-35)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("name", list(FUNCTIONS))
@pytest.mark.parametrize("kind", ["dot", "conv"])
def test_sums_of_finite_operands_that_overflow(kind: str, name: str, dtype: str) -> None:
    x, w, _, y = product(kind, dtype, name)
    rows = np.zeros(PRODUCTS[kind][1], "f")
    columns = rows if kind == "dot" else rows[..., 0, 0].T
    columns[:2, 0], columns[:2, 1], columns[0, 2] = 1e30, -1e30, 1e30
    columns[:3, 3] = 1e30, -1e30, 1
    w.set_value(rows)
    given = np.zeros(PRODUCTS[kind][0], "f")
    given[1, :2] = 1e30
    given[0, 2] = 0.5
    got = symdnn.function([x], y)(given)
    wanted = symdnn.function([x], y, mode="FAST_COMPILE")(given)
    assert np.isfinite(wanted[0]).all()
    # inf - inf: NaN in any order of the sum
    assert np.isnan(got[1, 3]).all() == np.isnan(wanted[1, 3]).all()
    np.testing.assert_allclose(got[:, :3], wanted[:, :3], rtol=1e-2, atol=1e-35)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("name", list(FUNCTIONS))
@pytest.mark.parametrize("kind", [k for k in PRODUCTS if k != "winograd"])  # sums neighbours, too
def test_one_odd_number_of_the_argument_spreads_as_it_should(
    kind: str, name: str, dtype: str
) -> None:
    x, w, _, y = product(kind, dtype, name)
    w.set_value(np.random.default_rng(0).uniform(0.1, 0.2, PRODUCTS[kind][1]).astype("f"))
    compiled, plain = (symdnn.function([x], y, mode=m) for m in (None, "FAST_COMPILE"))
    for odd in (0.0, np.nan, np.inf, -np.inf, 1e12):  # a call after another
        given = np.zeros(PRODUCTS[kind][0], "f")
        given.flat[3] = odd
        wanted = plain(given)
        got = compiled(given)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=1e-35)


CONVOLUTION = Conv(((0, 0), (0, 0)), (1, 1), (1, 1), 1, False)
APART = {
    "dot": (MatmulKernel(), OneDnnMatmul(Dot()), ((16, 64), (64, 48), (1, 48))),
    "conv": (ConvKernel(1), OneDnnConv(CONVOLUTION), (*PRODUCTS["conv"][:2], (1, 48, 1, 1))),
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("name", ["clip", "hardsigmoid"])
@pytest.mark.parametrize("kind", APART)
@pytest.mark.parametrize("compiles", ["auto", "never"])
def test_a_function_that_loses_nan_runs_apart(
    compiles: str, kind: str, name: str, dtype: str
) -> None:
    kernel, plain, shapes = APART[kind]
    op = plain.ending(dtype, bias=True, activation=name)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(TensorType(dtype, ()).numpy) for s in shapes]
    arrays[0].flat[3] = np.nan
    call = call_of(op, arrays, *op.output_types(list(map(type_of, arrays))))
    out = np.empty(call.outputs[0].shape, arrays[0].dtype)
    with config.change_flags({"cpu.compile": compiles}):
        launch = kernel.bind(call)
    scratch = np.empty(kernel.workspace_bytes(call) + 64, np.uint8)
    assert isinstance(launch, ActivatedLaunch)
    launch(arrays, [out], scratch)
    wanted = op.compute(*arrays)[0].astype("f")
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(out.astype("f"), wanted, rtol=1e-2, atol=1e-2)
    if kind == "dot":  # no operand is reordered
        assert (launch.native(arrays, [out], scratch) is None) is (compiles == "never")


@needs_bfloat16
def test_a_relu_of_bfloat16_runs_apart_and_one_of_float32_does_not() -> None:
    op = OneDnnMatmul(Dot())
    for dtype, apart in (("bfloat16", True), ("float32", False)):
        types = [TensorType(dtype, s) for s in ((1 << 14, 16), (16, 256), (1 << 14, 256))]
        fused = op.ending(dtype, activation="relu")
        call = Call(fused, tuple(types[:2]), (types[2],), NO_HINTS)
        assert runs_apart(call) is apart
        assert (post_ops(call) == ()) is apart
        assert isinstance(MatmulKernel().bind(call), ActivatedLaunch) is apart


def test_a_result_beyond_the_cache_is_limited_by_the_primitive() -> None:
    op = OneDnnMatmul(Dot()).ending(activation="clip")
    for rows, apart in ((64, True), (1 << 14, False)):
        types = [TensorType("float32", s) for s in ((rows, 16), (16, 256), (rows, 256))]
        call = Call(op, tuple(types[:2]), (types[2],), NO_HINTS)
        assert runs_apart(call) is apart
        assert ("clip" in [words[1] for words in post_ops(call)]) is not apart
