"""Products of 16 bits: their epilogues, kept parameters, and what runs in float32 instead."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.cpu.onednn import library
from symdnn.graph.op import Op
from symdnn.graph.target import Libraries, Target
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.nn.conv import Conv
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnMatmul
from tests.opt.lowering import rewritten
from tests.seeded import new_rng

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not there"),
]
needs_bfloat16 = pytest.mark.skipif(
    not library.problem() and not library.has_bfloat16(), reason="the CPU has no bfloat16"
)
BF16 = np.dtype(ml_dtypes.bfloat16)


def nodes(f: Any, *kinds: type[Op]) -> list[Any]:
    return [n for n in f.fgraph.toposort() if isinstance(n.op, kinds)]


def drawn(*shapes: Any, dtype: Any = "float32") -> list[Any]:
    rng = new_rng()
    return [rng.normal(size=s).astype(dtype) for s in shapes]


def values(*arrays: Any) -> list[Any]:
    return [np.asarray(a).astype("float64") for a in arrays]


# -- epilogues in bfloat16 -------------------------------------------------------------------------


@needs_bfloat16
@pytest.mark.parametrize("activate", [T.nnet.relu, nn.ReLU6(), nn.HardSwish(), nn.SiLU(), T.tanh])
def test_a_convolution_adds_and_activates_in_bfloat16(activate: Any) -> None:
    x, w, z, b = (
        T.tensor("bfloat16", (None,) * n, name="xwzb"[i]) for i, n in enumerate((4, 4, 4, 1))
    )
    y = activate(T.nnet.conv2d(x, w) + z + b.dimshuffle("x", 0, "x", "x"))
    f = symdnn.function([x, w, z, b], y)
    (node,) = nodes(f, OneDnnConv)
    assert node.op.bias
    assert node.op.activation
    assert not nodes(f, FusedElemwise)
    given = drawn((2, 16, 6, 6), (16, 16, 3, 3), (2, 16, 4, 4), 16, dtype=BF16)
    wide = [T.tensor4(), T.tensor4(), T.tensor4(), T.vector()]
    exact = activate(T.nnet.conv2d(*wide[:2]) + wide[2] + wide[3].dimshuffle("x", 0, "x", "x"))
    wanted = symdnn.function(wide, exact)(*(a.astype("float32") for a in given))
    got, wanted = values(f(*given), wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2)


# -- kept parameters -------------------------------------------------------------------------------


@needs_bfloat16
@pytest.mark.parametrize("transposed", [False, True])
def test_a_parameter_in_bfloat16_is_packed_until_it_changes(transposed: bool) -> None:
    a, b, bias, more = drawn((5, 48), (48, 32), 32, (5, 32), dtype=BF16)
    x, z = (
        T.tensor("bfloat16", (None, None), name="x"),
        T.tensor("bfloat16", (None, None), name="z"),
    )
    w = symdnn.shared(b.T.copy() if transposed else b)
    y = T.nnet.relu(T.dot(x, w.T if transposed else w) + symdnn.shared(bias) + z)
    f = symdnn.function([x, z], y)
    (node,) = nodes(f, OneDnnMatmul)
    assert (node.op.bias, node.op.activation, node.op.residual) == (True, "relu", True)

    def agrees(b: Any) -> None:
        a64, b64, bias64, z64 = values(a, b, bias, more)
        wanted = np.maximum(a64 @ b64 + bias64 + z64, 0)
        for _ in range(3):
            np.testing.assert_allclose(*values(f(a, more), wanted), rtol=2e-2, atol=0.1)

    agrees(b)
    new = (b.astype("float32") * -2).astype(BF16)
    w.set_value(new.T.copy() if transposed else new)
    agrees(new)


# -- in float32 ------------------------------------------------------------------------------------


def network(dtype: str) -> tuple[list[Any], Any]:
    """Convolutions with a norm and an activation, a pool, and a product; an element's function."""
    x, v, w, g, m = (
        T.tensor(dtype, (None,) * n, name="xvwgm"[i]) for i, n in enumerate((4, 4, 4, 1, 2))
    )
    y = T.nnet.conv2d(x, v)
    y = T.nnet.relu(y * g.dimshuffle("x", 0, "x", "x") + 1)
    y = T.nnet.conv2d(y, w) + y[:, :, 1:-1, 1:-1]
    pooled = T.nnet.softmax(T.dot(y.mean(axis=(2, 3)), m) / 32)
    return [x, v, w, g, m], pooled


def test_a_network_in_float16_is_computed_in_float32_and_rounded_once() -> None:
    given = drawn((2, 8, 9, 9), (8, 8, 3, 3), (8, 8, 3, 3), 8, (8, 5), dtype="float16")
    f, wide = (symdnn.function(*network(d)) for d in ("float16", "float32"))
    products = nodes(f, OneDnnConv, OneDnnMatmul)
    assert {n.outputs[0].type.dtype for n in products} == {"float32"}
    assert len(products) == 3
    got, wanted = f(*given), wide(*(a.astype("float32") for a in given))
    assert got.dtype == np.float16
    np.testing.assert_allclose(*values(got, wanted), rtol=1e-3, atol=1e-6)


def test_its_gradients_agree() -> None:
    given = drawn((2, 8, 9, 9), (8, 8, 3, 3), (8, 8, 3, 3), 8, (8, 5), dtype="float16")
    found = []
    for dtype in ("float16", "float32"):
        inputs, y = network(dtype)
        f = symdnn.function(inputs, T.grad((y**2).sum().astype("float32"), inputs[1:]))
        found.append(f(*(a.astype(dtype) for a in given)))
    for got, wanted in zip(*found, strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(
            *values(got, wanted), rtol=2e-2, atol=5e-3 * np.abs(wanted).max()
        )


def test_a_question_about_a_value_reads_the_rounded_one() -> None:
    x, w = (T.tensor("float16", (None, None), name=n) for n in "xw")
    f = symdnn.function([x, w], T.isinf(T.dot(x, w)))
    assert f(np.full((2, 2), 300, "float16"), np.full((2, 2), 300, "float16")).all()


def test_functions_of_elements_alone_stay_in_float16() -> None:
    x = T.tensor("float16", (None, None), name="x")
    f = symdnn.function([x], T.exp(x) * 2 + x)
    assert {v.type.dtype for n in f.fgraph.toposort() for v in n.outputs} == {"float16"}


@pytest.mark.parametrize(("isa", "dtype"), [("AVX2", "float32"), ("AVX512_CORE_BF16", "bfloat16")])
def test_bfloat16_is_widened_on_a_processor_without_it(isa: str, dtype: str) -> None:
    x, w = (T.tensor("bfloat16", (None,) * 4, name=n) for n in "xw")
    target = Target("cpu", isa=isa, libraries=Libraries({"onednn": (3, 2, 0)}))
    graph = rewritten([x, w], [T.nnet.relu(T.nnet.conv2d(x, w))], target)
    (node,) = [n for n in graph.toposort() if isinstance(n.op, OneDnnConv | Conv)]
    assert node.outputs[0].type.dtype == dtype


# -- NaN -------------------------------------------------------------------------------------------


@needs_bfloat16
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_maximum_of_bfloat16_keeps_a_nan(value: float) -> None:
    x = T.tensor("bfloat16", (None,) * 4, name="x")
    y = T.signal.pool.pool_2d(T.nnet.relu(T.nnet.conv2d(x, x[:, :, :1, :1])), (3, 3), True)
    f = symdnn.function([x], [y, T.signal.pool.pool_2d(x, (3, 3), True)])
    (given,) = drawn((16, 16, 6, 6), dtype=BF16)
    given[1, 2, 4, 4] = value
    got = np.asarray(f(given)[1]).astype("float32")
    windows = given.astype("float32").reshape(16, 16, 2, 3, 2, 3)
    np.testing.assert_array_equal(got, windows.max(axis=(3, 5)))


ACTIVATIONS_BY_NAME = {
    "relu": T.nnet.relu, "relu6": nn.ReLU6(), "sigmoid": T.nnet.sigmoid, "tanh": T.tanh,
    "softplus": T.nnet.softplus, "gelu": nn.GELU(), "hardsigmoid": nn.HardSigmoid(),
    "hardswish": nn.HardSwish(), "silu": nn.SiLU(),
}  # fmt: skip


@pytest.mark.parametrize("where", ["x", "w", "b"])
@pytest.mark.parametrize("product", ["dot", "conv"])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("name", list(ACTIVATIONS_BY_NAME))
def test_an_epilogue_keeps_a_nan(name: str, dtype: str, product: str, where: str) -> None:
    """Of any operand, also of a parameter that changes between calls."""
    shapes = ((16, 64), (64, 32)) if product == "dot" else ((2, 64, 8, 8), (32, 64, 1, 1))
    x, w, b = drawn(*shapes, (32,))
    x_var = T.tensor("float32", (None,) * x.ndim, name="x")
    kept = [symdnn.shared(w), symdnn.shared(b)]
    w_var, b_var = (v.astype(dtype) for v in kept)
    if product == "dot":
        made = T.dot(x_var.astype(dtype), w_var) + b_var
    else:
        made = T.nnet.conv2d(x_var.astype(dtype), w_var) + b_var.dimshuffle("x", 0, "x", "x")
    y = ACTIVATIONS_BY_NAME[name](made).astype("float32")
    f = symdnn.function([x_var], y)
    written_out = symdnn.function([x_var], y, mode="FAST_COMPILE")
    for _ in range(2):
        assert np.isfinite(f(x)).all()
    {"x": x, "w": w, "b": b}[where].flat[5] = np.nan
    kept[0].set_value(w)
    kept[1].set_value(b)
    wanted = written_out(x)
    assert 0 < np.isnan(wanted).sum() < wanted.size
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 0.02, "atol": 0.05}
    for _ in range(2):
        np.testing.assert_allclose(f(x), wanted, **tolerance)
