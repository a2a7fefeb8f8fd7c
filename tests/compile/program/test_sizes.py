"""Sizes of inputs, and what follows from them, are computed once for each plan."""

import numpy as np

import symdnn
import symdnn.tensor as T


def parts(f):
    (segment,) = f.stages.program.regions
    return [[type(n.op).__name__ for n in nodes] for nodes in (segment.sizes, segment.nodes)]


def test_the_count_of_a_mean_is_no_step(rng):
    x = T.dmatrix()
    f = symdnn.function([x], x.mean(0), mode=symdnn.Mode(target="cpu"))
    sizes, steps = parts(f)
    assert "ShapeI" in sizes
    assert "ShapeI" not in steps
    for rows in (4, 7, 4):
        a = rng.normal(size=(rows, 3))
        np.testing.assert_allclose(f(a), a.mean(0), rtol=1e-15)


def test_the_size_of_a_result_is_a_step(rng):
    """How many elements there are is known only when they are."""
    x = T.dvector()
    f = symdnn.function([x], x[x > 0].sum() / x[x > 0].shape[0], mode=symdnn.Mode(target="cpu"))
    for n in (5, 9):
        a = rng.normal(size=n)
        a[0] = 1
        np.testing.assert_allclose(f(a), a[a > 0].mean(), rtol=1e-14)


def test_sizes_that_leave_are_outputs():
    x = T.dmatrix()
    f = symdnn.function([x], [x.shape[0] * 2, x.shape[1] + 0.5, x + x.shape[1]])
    found = f(np.zeros((3, 4)))
    assert [float(np.asarray(v).flat[0]) for v in found] == [6, 4.5, 4]
    assert [float(np.asarray(v).flat[0]) for v in f(np.zeros((2, 6)))] == [4, 6.5, 6]
