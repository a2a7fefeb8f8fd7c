"""``associative_scan`` against a loop of NumPy's, and which functions have kernels."""

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.errors import TypeMismatch
from symdnn.ops.array.cumulative import CumMax, CumProd, CumSum, LinearRecurrence
from symdnn.ops.control.scan import Scan


def decay(x, y):
    """The prefixes of a linear recurrence."""
    return x[0] * y[0], y[0] * x[1] + y[1]


def prefixes(fn, elems, axis=0, reverse=False):
    """The prefixes of a list of arrays, one entry after the other."""
    entries = [np.moveaxis(e, axis, 0) for e in elems]
    entries = [e[::-1] if reverse else e for e in entries]
    found = list(itertools.accumulate(zip(*entries), lambda a, b: tuple(fn(a, b))))
    stacked = [np.stack(c) for c in zip(*found)]
    return [np.moveaxis(c[::-1] if reverse else c, 0, axis) for c in stacked]


def kinds(f, *args):
    """The ops of the loops and scans of a compiled function."""
    wanted = (CumSum, CumProd, CumMax, LinearRecurrence, Scan)
    return {type(n.op) for n in f.compiled(*args).fgraph.nodes if isinstance(n.op, wanted)}


WRITTEN = {
    "as in the paper": decay,
    "another order": lambda x, y: (y[0] * x[0], y[1] + x[1] * y[0]),
    "expanded": lambda x, y: (x[0] * y[0], (y[0] + 1) * x[1] + y[1] - x[1]),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_a_recurrence_is_one_kernel_however_it_is_written(how, rng):
    a, b = rng.uniform(0.1, 1, (7, 3)), rng.normal(size=(7, 3))
    f = symdnn.jit(lambda a, b: control.associative_scan(WRITTEN[how], (a, b)))
    for found, wanted in zip(f(a, b), prefixes(decay, [a, b])):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert kinds(f, a, b) == {CumProd, LinearRecurrence}


def test_what_is_no_recurrence_is_not_taken_for_one(rng):
    a, b = rng.normal(size=(5,)), rng.normal(size=(5,))
    near = {
        "a factor of the earlier": lambda x, y: (x[0] * y[0], x[0] * y[1] + x[1]),
        "a coefficient": lambda x, y: (x[0] + y[0], 2 * (x[1] + y[1]) - (y[1] + x[1])),
        "the factor is a sum": lambda x, y: (x[0] + y[0], x[1] + y[1] + 0 * y[0]),
    }
    for fn in near.values():
        f = symdnn.jit(lambda a, b, fn=fn: control.associative_scan(fn, (a, b)))
        for found, wanted in zip(f(a, b), prefixes(fn, [a, b])):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_axes_and_ends(axis, reverse, rng):
    a, b = rng.uniform(0.1, 1, (4, 6, 2)), rng.normal(size=(4, 6, 2))
    f = symdnn.jit(lambda a, b: control.associative_scan(decay, (a, b), reverse, axis))
    wanted = prefixes(decay, [a, b], axis, reverse)
    for found, w in zip(f(a, b), wanted):
        np.testing.assert_allclose(found, w, rtol=1e-12)
    g = symdnn.jit(
        lambda a, b: control.associative_scan(
            lambda x, y: (T.logaddexp(x[0], y[0]), T.maximum(x[1], y[1])), (a, b), reverse, axis
        )
    )
    wanted = prefixes(
        lambda x, y: (np.logaddexp(x[0], y[0]), np.maximum(x[1], y[1])), [a, b], axis, reverse
    )
    for found, w in zip(g(a, b), wanted):
        np.testing.assert_allclose(found, w, rtol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8, 9, 17, 31])
def test_products_of_matrices_of_any_number(n, rng):
    m = rng.normal(size=(n, 2, 2))
    fn = lambda x, y: T.batched_dot(y, x)  # noqa: E731
    f = symdnn.jit(lambda m: control.associative_scan(fn, m))
    wanted = np.reshape(list(itertools.accumulate(m, lambda x, y: y @ x)), m.shape)
    np.testing.assert_allclose(f(m), wanted)
    static = T.dtensor3()
    static = T.specify_shape(static, (n, 2, 2))
    x = T.dtensor3()
    g = symdnn.function([x], control.associative_scan(fn, T.specify_shape(x, (n, 2, 2))))
    np.testing.assert_allclose(g(m), wanted)


@pytest.mark.cpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -3])
def test_products_along_any_axis_and_their_gradients(axis, reverse, rng):
    """Of a known length as of another one, by NumPy and by differences."""
    shape = [3, 2, 2]
    dim = axis % 4
    shape.insert(dim, 6)
    m, w = rng.normal(size=(2, *shape)) / 2
    order = slice(None, None, -1 if reverse else 1)
    parts = np.moveaxis(m, dim, 0)[order]
    wanted = np.array(list(itertools.accumulate(parts, lambda x, y: y @ x)))[order]

    def scanned(m):
        return control.associative_scan(lambda x, y: T.matmul(y, x), m, reverse, axis)

    def cost(m):
        return (scanned(m) * w).sum()

    found = symdnn.jit(scanned)(m)
    np.testing.assert_allclose(found, np.moveaxis(wanted, 0, dim))
    slope, tangent = symdnn.jit(symdnn.grad(cost))(m), rng.normal(size=m.shape)
    ends = [symdnn.jit(cost)(m + s * tangent) for s in (1e-5, -1e-5)]
    np.testing.assert_allclose((slope * tangent).sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-7)
    known = symdnn.jit(symdnn.grad(lambda m: cost(T.specify_shape(m, w.shape))))
    np.testing.assert_allclose(known(m), slope)


def test_a_known_length_has_no_loop_and_takes_two_applications_an_entry():
    """So that the whole is one plan, which a GPU captures as one graph."""
    m, sizes = T.TensorType("float32", (64, 3, 3))(), []

    def product(x, y):
        sizes.append(x.type.shape[0])
        return T.matmul(y, x)

    f = symdnn.function([m], control.associative_scan(product, m))
    assert not [n for n in f.fgraph.nodes if isinstance(n.op, Scan)]
    assert 64 < sum(n for n in sizes if n is not None) < 2 * 64


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 16])
def test_a_known_length_has_no_value_without_elements(n):
    x = T.tensor("float32", (n, 2, 2))
    y = control.associative_scan(lambda a, b: T.batched_dot(b, a), x)
    f = symdnn.function([x], [y, symdnn.grad((y**2).sum(), x)], mode="FAST_COMPILE")
    assert all(0 not in v.type.shape for node in f.fgraph.nodes for v in node.outputs)


@pytest.mark.cpu
def test_derivatives(rng):
    a, b = rng.uniform(0.5, 1, 5), rng.normal(size=5)

    def of_kernel(a, b):
        return (control.associative_scan(decay, (a, b))[1] ** 2).sum()

    def of_rounds(a, b):
        fn = lambda x, y: (x[0] * y[0], y[0] * T.sinh(T.arcsinh(x[1])) + y[1])  # noqa: E731
        return (control.associative_scan(fn, (a, b))[1] ** 2).sum()

    tangents = (rng.normal(size=5), rng.normal(size=5))
    step = 1e-6
    f = symdnn.jit(of_kernel)
    ends = [f(a + s * tangents[0], b + s * tangents[1]) for s in (step, -step)]
    wanted = (ends[0] - ends[1]) / (2 * step)
    for g in (of_kernel, of_rounds):
        slopes = symdnn.grad(g, (0, 1))(a, b)
        assert np.isclose(sum((s * t).sum() for s, t in zip(slopes, tangents)), wanted)
        assert np.isclose(symdnn.jvp(g, (a, b), tangents)[1], wanted)
    one = symdnn.hvp(of_kernel, (a, b), tangents)
    other = symdnn.hvp(of_rounds, (a, b), tangents)
    for x, y in zip(one, other):
        np.testing.assert_allclose(x, y, rtol=1e-8)


def test_a_factor_that_broadcasts_and_integers(rng):
    a, b = rng.uniform(0.1, 1, (6, 1)), rng.normal(size=(6, 3))
    f = symdnn.jit(lambda a, b: control.associative_scan(decay, (a, b))[1])
    wanted = prefixes(decay, [np.broadcast_to(a, b.shape), b])[1]
    np.testing.assert_allclose(f(a, b), wanted)
    n = np.array([1, 2, 3])
    both = symdnn.jit(lambda n: control.associative_scan(decay, (n, n)))(n)
    assert [v.tolist() for v in both] == [[1, 2, 6], [1, 4, 15]]
    assert symdnn.jit(lambda x: control.associative_scan(lambda a, b: a + b, x))(n[:0]).size == 0


def test_another_structure_is_refused():
    with pytest.raises(TypeMismatch, match="structure"):
        control.associative_scan(lambda a, b: (a, b), T.dvector())


def test_a_result_of_another_rank_is_refused():
    x = T.dvector("x")
    with pytest.raises(TypeMismatch, match="a result of 1 dimensions"):
        control.associative_scan(lambda a, b: (a + b).sum(), x)
