"""Compiled draws: the reference's numbers at every start and length, threads, dropout, states."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise import random_draws
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.ops.nn.dropout import Dropout, DropoutGrad
from symdnn.ops.random.random import RandomBernoulli, RandomNormal, RandomUniform
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")
STARTS = [0, 1, 2, 3, 7, 1 << 33, (1 << 64) - 2]
SIZES = [1, 2, 5, 251, 252, 253, 1000, 4097]


@pytest.fixture(autouse=True)
def _always():
    with config.change_flags(**{"cpu.compile": "always"}):
        yield


def state(counter):
    key = new_rng().integers(1 << 64, dtype=np.uint64)
    return np.array([key, counter], np.uint64)


def run(op, inputs, outputs):
    """The kernel's results; the call's types are those of the arrays."""
    types = [TensorType(a.dtype.name, a.shape) for a in (*inputs, *outputs)]
    call = Call(op, tuple(types[: len(inputs)]), tuple(types[len(inputs) :]), Hints())
    kernel = {Dropout: random_draws.DropoutKernel, DropoutGrad: random_draws.DropoutGradKernel}.get(
        type(op), random_draws.DrawKernel
    )()
    assert kernel.refuses(call) is None
    kernel.bind(call)(inputs, outputs)
    return outputs


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", [RandomUniform, RandomNormal])
def test_values_are_those_of_the_reference(op, start, size):
    op, given = op("float32", (None,)), state(start)
    wanted, following = op.reference(given, size)
    y, after = run(op, [given, np.int64(size)], [np.empty(size, "f"), np.empty(2, np.uint64)])
    if isinstance(op, RandomUniform):
        np.testing.assert_array_equal(y, wanted)
    else:
        np.testing.assert_allclose(y, wanted, rtol=3e-7, atol=1e-9)
    np.testing.assert_array_equal(after, following)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "int8", "int64", "float16"])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
def test_one_probability(dtype, p):
    op, given = RandomBernoulli(dtype, (None, None)), state(11)
    for kind in ("float32", "float64"):
        q = np.full((1, 1), p, kind)
        wanted, following = op.reference(given, q, 37, 41)
        out = [np.empty((37, 41), TensorType(dtype).numpy), np.empty(2, np.uint64)]
        y, after = run(op, [given, q, np.int64(37), np.int64(41)], out)
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(after, following)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_draw_the_same(count):
    op, given = RandomUniform("float32", (None,)), state(5)
    size = 100_003
    with config.change_flags(**{"openmp.threads": count}):
        y, _ = run(op, [given, np.int64(size)], [np.empty(size, "f"), np.empty(2, np.uint64)])
    np.testing.assert_array_equal(y, op.reference(given, size)[0])


def test_the_next_state_may_lie_where_the_state_does():
    op, given = RandomUniform("float32", (None,)), state(5)
    wanted, following = op.reference(given.copy(), 3000)
    y, after = run(op, [given, np.int64(3000)], [np.empty(3000, "f"), given])
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(after, following)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
@pytest.mark.parametrize(("shared", "scale"), [((), True), ((2,), True), ((0, 1), False)])
def test_dropout_and_its_gradient(dtype, rate, shared, scale):
    kind = TensorType(dtype).numpy
    x = new_rng().normal(size=(6, 7, 30)).astype(kind)
    op, given, r = Dropout(shared, scale), state(2), np.float32(rate).reshape(())
    r = np.asarray(r)
    wanted = op.reference(given, x, r)
    out = [np.empty_like(x), np.empty(wanted[1].shape, bool), np.empty(2, np.uint64)]
    for found, value in zip(run(op, [given, x, r], out), wanted):
        np.testing.assert_array_equal(found.astype("f8"), value.astype("f8"))
    dy = new_rng().normal(size=x.shape).astype(kind)
    (dx,) = run(DropoutGrad(scale), [dy, wanted[1], r], [np.empty_like(x)])
    back = DropoutGrad(scale).reference(dy, wanted[1], r)
    np.testing.assert_array_equal(dx.astype("f8"), back.astype("f8"))


def test_what_is_refused():
    def call(op, *types):
        given = tuple(TensorType(*t) for t in types)
        return Call(op, given[:-1], given[-1:], Hints())

    s, n = ("uint64", (2,)), ("int64", ())
    kernel = random_draws.DrawKernel()
    wide = call(RandomUniform("float64", (None,)), s, n, ("float64", (9,)))
    assert "float32" in kernel.refuses(wide)
    cut = call(RandomNormal("float32", (None,), True), s, n, ("float32", (9,)))
    assert "truncated" in kernel.refuses(cut)
    several = call(RandomBernoulli("bool", (None,)), s, ("float32", (9,)), n, ("bool", (9,)))
    assert "several" in kernel.refuses(several)
    none = call(RandomUniform("float32", (None,)), s, n, ("float32", (0,)))
    assert "no elements" in kernel.refuses(none)


@pytest.mark.parametrize("wish", ["auto", "never"])
def test_programs_draw_the_same_numbers_by_numpy(wish):
    def drawn():
        stream = T.random.RandomStreams(7)
        x = T.fmatrix("x")
        y = T.nnet.dropout(x, 0.4, stream) + stream.uniform((50, 40), dtype="float32")
        f = symdnn.function([x], [y, T.grad(y.sum(), x)], mode=CPU)
        return [f(np.ones((50, 40), "float32")) for _ in range(4)]

    with config.change_flags(**{"cpu.compile": wish}):
        found = drawn()
    wanted = drawn()
    for a, b in zip(found, wanted):
        for v, w in zip(a, b):
            np.testing.assert_allclose(v, w, rtol=1e-6)
    assert (found[0][0] != found[1][0]).any()
