"""Results of elementwise ops take the order of axes that transposed arguments have."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.execution.output_buffers import OutputBuffers, memory_order

VIEWS = {
    "transposed": (lambda a: a.reshape(270, 800).T, (0, 1)),
    "axes 2 0 1": (lambda a: a.reshape(9, 30, 800).transpose(2, 0, 1), (1, 2, 0)),
    "axes 1 0 2": (lambda a: a.reshape(9, 30, 800).transpose(1, 0, 2), (1, 0, 2)),
    "one axis of one": (lambda a: a.reshape(270, 1, 800).T, None),
    "every second row": (lambda a: a.reshape(270, 800)[::2].T, (0, 1)),
    "backwards": (lambda a: a.reshape(270, 800)[::-1].T, (0, 1)),
    "C order": (lambda a: a.reshape(270, 800), None),
    "every second column": (lambda a: a.reshape(270, 800)[:, ::2], None),
    "repeated rows": (lambda a: np.broadcast_to(a[:800], (270, 800)), None),
}
PROGRAMS = {
    "of one": (lambda x, y: x * 2 + 1, True),
    "with a part": (lambda x, y: x - x[0], True),
    "of both": (lambda x, y: (x + y) * x, True),
    "a choice": (lambda x, y: T.where(x > y, x, y), True),
    "other dtype": (lambda x, y: T.cast(x, "int32") + 1, True),
    "read again": (lambda x, y: [T.exp(x), T.exp(x).sum()], None),
    "reshaped": (lambda x, y: (x + 1).flatten(), None),
}


def called(f, *given):
    f(*map(np.ascontiguousarray, given))
    for _ in range(3):
        got = f(*given)
    return got


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "complex64"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("view", VIEWS)
def test_the_order_of_axes_is_that_of_the_arguments(view, program, dtype):
    rng, (of, order) = np.random.default_rng(0), VIEWS[view]
    xs = [of(rng.integers(0, 4, 216000).astype(dtype)) for _ in range(2)]
    if dtype == "complex64" and program != "with a part":
        pytest.skip("ops of complex numbers are loops of their own")
    x, y = (T.TensorType(dtype, (None,) * a.ndim)() for a in xs)
    build, follows = PROGRAMS[program]
    f = symdnn.function([x, y], build(x, y), on_unused_input="ignore")
    got, want = called(f, *xs), f(*map(np.ascontiguousarray, xs))
    for a, b in zip(got, want, strict=True) if isinstance(got, list) else [(got, want)]:
        np.testing.assert_array_equal(a, b)
        if follows and order is not None:
            steps = sorted(range(a.ndim), key=lambda d: a.strides[d])
            assert a.transpose(steps[::-1]).flags.c_contiguous
            assert not a.flags.c_contiguous
            assert np.argsort(a.strides).tolist() == np.argsort(np.abs(xs[0].strides)).tolist()
        elif follows and view != "one axis of one":
            assert a.flags.c_contiguous


def test_arguments_of_two_orders_have_a_result_in_c_order():
    a = np.random.default_rng(0).normal(size=(300, 200)).T
    b = np.ascontiguousarray(a)
    x, y = T.dmatrices(2)
    f = symdnn.function([x, y], x + y)
    assert called(f, a, b).flags.c_contiguous
    np.testing.assert_array_equal(f(b, a), 2 * a)


@pytest.mark.parametrize("order", [(1, 0), (1, "x", 0)])
def test_transposes_of_what_is_made_are_views(order):
    a = np.random.default_rng(0).normal(size=(300, 200))
    x = T.dmatrix()
    w = symdnn.shared(np.zeros((200, 300)))
    for made in (x.dimshuffle(order) + 1, T.cumsum(x, 0).dimshuffle(order)):
        f = symdnn.function([x], made)
        got = [f(a + k) for k in range(3)]
        want = [symdnn.function([x], symdnn.tensor.copy(made).flatten())(a + k) for k in range(3)]
        for y, z in zip(got, want, strict=True):
            np.testing.assert_array_equal(y, z.reshape(y.shape))
            assert y.strides[0] == 8
    symdnn.function([x], [], updates=[(w, x.T + 1)])(a)
    assert w.get_value(borrow=True).flags.c_contiguous
    few = symdnn.function([x], x.T + 1)(a[:20, :20])
    assert few.flags.c_contiguous  # a copy of it takes less time than a view


def test_what_a_user_holds_is_not_written_again():
    x = T.dmatrix()
    f = symdnn.function([x], x * 2)
    given = [np.random.default_rng(k).normal(size=(300, 200)).T for k in range(4)]
    f(np.ascontiguousarray(given[0]))
    held = [f(a)[1:] for a in given]
    for got, a in zip(held, given, strict=True):
        np.testing.assert_array_equal(got, 2 * a[1:])
    before = f(given[0]).__array_interface__["data"]
    assert f(given[1]).__array_interface__["data"] == before  # recycled


def test_memory_in_an_order_of_axes():
    for shape in ((3, 4, 5), (30, 40, 50)):  # the latter is recycled
        buffers = OutputBuffers([(0, shape, np.dtype("float32"))])
        for order in ((2, 1, 0), (1, 2, 0)):
            make, given = buffers.maker(0, order)
            made = make(*given)
            assert made.shape == shape
            assert made.transpose(order).flags.c_contiguous


def test_orders_of_arrays():
    a = np.zeros((5, 3, 4), "float32").transpose(1, 2, 0)
    assert memory_order(a) == (2, 0, 1)
    assert memory_order(np.zeros((3, 4, 5))) == (0, 1, 2)
    assert memory_order(np.broadcast_to(a[:1], a.shape)) == (0, 1, 2)
