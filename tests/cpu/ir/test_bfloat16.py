"""bfloat16 on the CPU: elementwise, reductions, products, images; what a CPU without it does."""

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.onednn import library
from symdnn.graph.target import Target
from symdnn.libraries.table import not_lowered
from symdnn.ops.vendor.onednn import OneDnnMatmul
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")
BF16 = ml_dtypes.bfloat16
#: Half a unit in the last place of eight bits, relative.
HALF = 2.0**-8

needs_llvm = pytest.mark.skipif(bool(jit.problem()), reason="no LLVM")
has_it = not library.problem() and library.has_bfloat16()


def normal(*shape):
    return new_rng().normal(size=shape).astype(BF16)


def kernels(f):
    (plan,) = f.plans()
    return {n.op: c for n, c in plan.specialised.choices.items()}


@needs_llvm
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (33, 65), (200, 300), (0, 4)])
@pytest.mark.parametrize("threads", [1, 2])
def test_elementwise_and_reductions(shape, threads):
    x, y = T.matrix("x", dtype="bfloat16"), T.matrix("y", dtype="bfloat16")
    outputs = [T.tanh(x) * y, T.exp(x), T.maximum(x, y), x.sum(axis=1), (x * y).sum(), y.T + 1]
    f = symdnn.function([x, y], outputs, mode=CPU)
    a, b = normal(*shape), normal(*shape)
    wide, other = a.astype("f8"), b.astype("f8")
    rounded = np.tanh(wide).astype(BF16).astype("f8")
    wanted = [
        rounded * other, np.exp(wide), np.maximum(wide, other), wide.sum(1),
        (wide * other).astype(BF16).astype("f8").sum(), other.T + 1,
    ]  # fmt: skip
    flags = {"openmp.threads": threads, "cpu.compile": "always"}
    with config.change_flags(**flags):
        for _ in range(3):
            for found, value in zip(f(a, b), wanted):
                assert found.dtype == BF16
                np.testing.assert_allclose(found.astype("f8"), value, rtol=2.1 * HALF, atol=1e-6)
        if 0 not in shape:
            names = {c.kernel.name for c in kernels(f).values()}
            assert {"llvm.elementwise", "llvm.nest"} <= names


@pytest.mark.skipif(not has_it, reason="the CPU does not compute in bfloat16")
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 3, 7), (64, 96, 33), (300, 256, 200)])
@pytest.mark.parametrize("turned", [False, True])
def test_products(sizes, turned):
    m, k, n = sizes
    x, y = T.matrix("x", dtype="bfloat16"), T.matrix("y", dtype="bfloat16")
    f = symdnn.function([x, y], T.dot(x, y.T if turned else y), mode=CPU)
    a, b = normal(m, k), normal(k, n)
    given = np.ascontiguousarray(b.T) if turned else b
    exact = a.astype("f8") @ b.astype("f8")
    size = np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))
    for _ in range(3):
        found = f(a, given)
        assert (np.abs(found.astype("f8") - exact) <= HALF * np.abs(exact) + 1e-5 * size).all()
    assert "onednn.matmul" in {c.kernel.name for c in kernels(f).values()}


def test_products_on_a_cpu_without_it():
    x, y = T.matrix("x", dtype="bfloat16"), T.matrix("y", dtype="bfloat16")
    target = Target("cpu", onednn=(3, 2, 0), isa="AVX2", threads=2)
    f = symdnn.function([x, y], T.dot(x, y), mode=symdnn.Mode(target=target))
    assert not not_lowered(f.fgraph, target)
    (product,) = [n for n in f.fgraph.nodes if isinstance(n.op, OneDnnMatmul)]
    assert product.outputs[0].type.dtype == "float32"
    a, b = normal(70, 80), normal(80, 90)
    exact = a.astype("f8") @ b.astype("f8")
    size = np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))
    for _ in range(3):
        found = f(a, b).astype("f8")
        assert (np.abs(found - exact) <= HALF * np.abs(exact) + 1e-5 * size).all()


@needs_llvm
def test_a_training_step_learns():
    x, t = T.matrix("x", dtype="bfloat16"), T.ivector("t")
    w = symdnn.shared(normal(20, 5) * BF16(0.1))
    p = T.nnet.softmax(T.dot(x, w).astype("float32"))
    loss = T.nnet.categorical_crossentropy(p, t).mean()
    new = w - BF16(0.5) * T.grad(loss, w)
    f = symdnn.function([x, t], loss, updates=[(w, new)], mode=CPU)
    a = normal(60, 20)
    labels = (a.astype("f4")[:, :5].argmax(1)).astype("int32")
    losses = [float(f(a, labels)) for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.skipif(not has_it, reason="the CPU does not compute in bfloat16")
@pytest.mark.parametrize(("groups", "channels"), [(1, 16), (2, 8), (1, 3)])
def test_convolutions_in_three_directions(groups, channels):
    def program(x, w):
        words = {"border_mode": ((1, 1), (0, 2)), "subsample": (2, 1), "num_groups": groups}
        y = T.nnet.conv2d(x, w, **words)
        loss = (y.astype("float64") ** 2).sum()
        return symdnn.function([x, w], [y, *T.grad(loss, [x, w])], mode=CPU)

    f = program(T.tensor4("x", dtype="bfloat16"), T.tensor4("w", dtype="bfloat16"))
    exact = program(T.dtensor4("x"), T.dtensor4("w"))
    a, k = normal(3, channels, 9, 8), normal(16, channels // groups, 3, 3)
    wanted = exact(a.astype("f8"), k.astype("f8"))
    for _ in range(3):
        for found, value in zip(f(a, k), wanted):
            assert found.dtype == BF16
            off = np.abs(found.astype("f8") - value).max()
            assert off <= 2 * HALF * np.abs(value).max()
    names = [c.kernel.name for c in kernels(f).values()]
    assert names.count("onednn.conv") == 3


@pytest.mark.skipif(not has_it, reason="the CPU does not compute in bfloat16")
@pytest.mark.parametrize("mode", ["max", "average_exc_pad"])
def test_pooling(mode):
    x = T.tensor4("x", dtype="bfloat16")
    y = T.signal.pool.pool_2d(x, (2, 2), ignore_border=True, mode=mode)
    f = symdnn.function([x], [y, T.grad(y.astype("float32").sum(), x)], mode=CPU)
    a = normal(3, 16, 8, 6)
    windows = a.astype("f8").reshape(3, 16, 4, 2, 3, 2)
    wanted = windows.max(axis=(3, 5)) if mode == "max" else windows.mean(axis=(3, 5))
    wide = wanted[:, :, :, None, :, None]
    slope = np.broadcast_to(windows == wide if mode == "max" else 0.25, windows.shape)
    for _ in range(3):
        found, back = f(a)
        np.testing.assert_allclose(found.astype("f8"), wanted, rtol=HALF, atol=HALF / 8)
        np.testing.assert_array_equal(back.astype("f8"), slope.reshape(a.shape))
    assert "onednn.pool" in {c.kernel.name for c in kernels(f).values()}
