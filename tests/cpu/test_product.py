"""Small matrix products: every shape of tile, how operands lie, a bias, where oneDNN takes over."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu import jit, product
from symdnn.cpu.product_ir import product_ir
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.ops.dot import BatchedDot, Dot
from symdnn.ops.onednn import OneDnnMatmul

CPU = symdnn.Mode(target="cpu")
KERNEL = product.ProductKernel()


def call_of(*arrays, bias=False):
    types = [TensorType("float32", a.shape) for a in arrays]
    op = OneDnnMatmul(BatchedDot() if arrays[0].ndim == 3 else Dot(), bias=bias)
    return Call(op, tuple(types[:-1]), tuple(types[-1:]), Hints())


def run(a, b, *bias):
    out = np.full((*a.shape[:-1], b.shape[-1]), np.nan, np.float32)
    call = call_of(a, b, *bias, out, bias=bool(bias))
    assert KERNEL.refuses(call) is None
    KERNEL.bind(call)([a, b, *bias], [out])
    wanted = a.astype("f8") @ b.astype("f8") + sum(x.astype("f8") for x in bias)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


def normal(*shape):
    return np.random.default_rng().normal(size=shape).astype("float32")


@pytest.mark.parametrize("m", [1, 2, 3, 8, 9, 17])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 32, 33, 70])
@pytest.mark.parametrize("k", [1, 5, 31])
def test_every_part_of_a_tile(m, n, k):
    run(normal(m, k), normal(k, n))


@pytest.mark.parametrize("shape", [(3, 4, 5), (7, 33, 9), (2, 1, 1)])
def test_stacks_and_a_bias(shape):
    s, m, k = shape
    run(normal(s, m, k), normal(s, k, 18))
    run(normal(m, k), normal(k, 18), normal(1, 18))


@pytest.mark.parametrize("turned", ["a", "b", "ab", "rows", "reversed"])
def test_operands_that_lie_otherwise(turned):
    a = normal(12, 9).T if "a" in turned else normal(9, 12)
    b = normal(20, 12).T if "b" in turned else normal(12, 20)
    if turned == "rows":
        a, b = normal(18, 12)[::2], normal(24, 20)[::2]
    if turned == "reversed":
        a, b = normal(9, 12)[::-1, ::-1], normal(12, 20)[::-1]
    run(a, b)


@pytest.mark.parametrize("width", [4, 8])
def test_narrower_vectors_compile_and_are_right(width, monkeypatch):
    monkeypatch.setattr(jit, "vector_width", lambda: width)
    product._compiled.cache_clear()
    try:
        for m, k, n in [(9, 7, 21), (1, 3, 5), (4, 4, 2 * width)]:
            run(normal(m, k), normal(k, n), normal(1, n))
    finally:
        monkeypatch.undo()
        product._compiled.cache_clear()
    assert product_ir(width, True) != product_ir(width, False)


def test_what_is_left_to_onednn():
    large, empty = normal(64, 64), normal(0, 4)
    assert "oneDNN" in KERNEL.refuses(call_of(large, large, large))
    assert "empty" in KERNEL.refuses(call_of(empty, normal(4, 3), normal(0, 3)))
    small = normal(4, 4)
    with symdnn.config.change_flags(**{"cpu.compile": "never"}):
        assert "never" in KERNEL.refuses(call_of(small, small, small))


def test_a_chain_in_a_program_is_one_call_and_not_a_number_stays():
    x, w = T.fmatrix("x"), symdnn.shared(normal(30, 30) / 6)
    y = x
    for _ in range(20):
        y = T.dot(y, w)
    f = symdnn.function([x], [y, T.dot(x.T, y)], mode=CPU)
    a = normal(30, 30)
    wanted = a.astype("f8")
    for _ in range(20):
        wanted = wanted @ w.get_value().astype("f8")
    for _ in range(4):
        y, z = f(a)
        np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(z, a.T.astype("f8") @ wanted, rtol=1e-3, atol=1e-4)
    plan = f.plans()[0].bound
    assert {c.kernel.name for c in plan.spec.choices.values()} >= {"llvm.product"}
    assert len(plan.driver._bound_later) == 1
    a[3, 4] = np.nan
    assert np.isnan(f(a)[0][3]).all()
