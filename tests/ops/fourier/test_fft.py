"""``T.fft`` against ``numpy.fft``: sizes, axes, norms, dtypes, errors; complex gradients."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import AxisError, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.tensor import theano_fft

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 5, 6))
Z = X + 1j * RNG.standard_normal((4, 5, 6))


def value(v):
    return evaluate([v], {})[0]


def test_all_sizes_axes_and_norms_are_numpys():
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        for n in (None, 1, 2, 5, 6, 9):
            for axis in (-1, 0, 1):
                for norm in (None, "backward", "ortho", "forward"):
                    data = X if name in ("rfft", "ihfft") else Z
                    found = value(getattr(T.fft, name)(data, n, axis, norm))
                    wanted = getattr(np.fft, name)(data, n, axis, norm)
                    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_several_axes_are_numpys():
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        data = X if name == "rfftn" else Z
        for s, axes in (
            (None, None), ((4, 7), (0, 2)), ((4, -1), (2, 1)), ((3, 3, 3), (1, 2, 0)),
            (None, (-1, 0)),
        ):  # fmt: skip
            found = value(getattr(T.fft, name)(data, s, axes))
            wanted = getattr(np.fft, name)(data, s, axes)
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12, err_msg=f"{name}{s}")
    x, y = T.dtensor3(), T.dtensor3()
    f = symdnn.function([x, y], T.fft.rfftn(x, s=y.shape))
    wanted = np.fft.rfftn(X, (4, 4, 9), (0, 1, 2))
    np.testing.assert_allclose(f(X, np.zeros((4, 4, 9))), wanted, rtol=1e-12, atol=1e-12)
    # Sizes without axes are those of the last axes (deprecated in NumPy).
    found = value(T.fft.fftn(Z, (3, 8)))
    np.testing.assert_allclose(found, np.fft.fftn(Z, (3, 8), (1, 2)), rtol=1e-12, atol=1e-12)


def test_frequencies_and_shifts_are_numpys():
    n = T.lscalar("n")
    f = symdnn.function([n], [T.fft.fftfreq(n, 0.25), T.fft.rfftfreq(n, 0.25)])
    for size in (1, 2, 7, 8):
        found = f(size)
        np.testing.assert_allclose(found[0], np.fft.fftfreq(size, 0.25), rtol=1e-6)
        np.testing.assert_allclose(found[1], np.fft.rfftfreq(size, 0.25), rtol=1e-6)
        shifted = value(T.fft.fftshift(np.arange(size)))
        assert np.array_equal(shifted, np.fft.fftshift(np.arange(size)))
        assert np.array_equal(value(T.fft.ifftshift(shifted)), np.arange(size))
    assert np.array_equal(value(T.fft.fftshift(X, (0, -1))), np.fft.fftshift(X, (0, -1)))
    assert value(T.fft.fftfreq(8, dtype="float64")).dtype == "float64"


def test_dtypes_are_scipys():
    for given, wanted in (
        ("float16", "complex64"), ("bfloat16", "complex64"), ("float32", "complex64"),
        ("float64", "complex128"), ("complex64", "complex64"), ("complex128", "complex128"),
        ("int64", "complex64"), ("bool", "complex64"),
    ):  # fmt: skip
        x = T.TensorType(given, (None, None))("x")
        assert T.fft.fft(x).type.dtype == wanted, given
        real = {"complex64": "float32", "complex128": "float64"}[wanted]
        assert T.fft.irfft(x).type.dtype == real, given
        if not given.startswith("complex"):
            assert T.fft.rfft(x).type.dtype == wanted, given


def test_static_sizes_follow():
    x = T.tensor("float32", (3, 8))
    assert T.fft.rfft(x).type.shape == (3, 5)
    assert T.fft.rfft(x, 11).type.shape == (3, 6)
    assert T.fft.irfft(T.fft.rfft(x)).type.shape == (3, 8)
    assert T.fft.irfft(T.fft.rfft(x), 7).type.shape == (3, 7)
    assert T.fft.fft(x, 4).type.shape == (3, 4)
    batch = T.tensor("float32", ("batch", 8))
    assert T.fft.rfft(batch).type.names is not None


def test_a_symbolic_size_crops_and_pads():
    x, n = T.dmatrix("x"), T.lscalar("n")
    cost = (abs(T.fft.rfft(x, n)) ** 2).sum() + (T.fft.irfft(T.fft.fft(x), n) ** 2).sum()
    f = symdnn.function([x, n], [T.fft.fft(x, n), T.fft.irfft(x, n), symdnn.grad(cost, x)])
    for size in (1, 4, 6, 9):
        y, back, slope = f(X[0], size)
        np.testing.assert_allclose(y, np.fft.fft(X[0], size), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(back, np.fft.irfft(X[0], size), rtol=1e-12, atol=1e-12)
        turn = np.random.default_rng(0).standard_normal(X[0].shape)

        def cost_at(a, size=size):
            half = np.sum(abs(np.fft.rfft(a, size)) ** 2)
            return half + np.sum(np.fft.irfft(np.fft.fft(a), size) ** 2)

        numeric = (cost_at(X[0] + 1e-6 * turn) - cost_at(X[0] - 1e-6 * turn)) / 2e-6
        np.testing.assert_allclose((slope * turn).sum(), numeric, rtol=1e-6)


def test_complex_gradients_have_the_projects_convention():
    """``dC/dx + i dC/dy``: of the cost ``|F z|^2`` it is ``2 n z`` by Parseval."""
    z = T.zmatrix("z")
    cost = (abs(T.fft.fft(z)) ** 2).sum()
    slope = symdnn.function([z], symdnn.grad(cost, z))(Z[0])
    np.testing.assert_allclose(slope, 2 * 6 * Z[0], rtol=1e-12)


def test_errors_say_what_is_wanted():
    x = T.fmatrix("x")
    with pytest.raises(OptionError, match="'backward', 'ortho' or 'forward'"):
        T.fft.fft(x, norm="unitary")
    with pytest.raises(AxisError, match="2 dimension"):
        T.fft.fft(x, axis=2)
    with pytest.raises(AxisError, match="each of them once"):
        T.fft.fftn(x, axes=(0, -2))
    with pytest.raises(AxisError, match="at least one dimension"):
        T.fft.fft(T.fscalar())
    with pytest.raises(ShapeMismatch, match="at least 1"):
        T.fft.fft(x, 0)
    with pytest.raises(ShapeMismatch, match="last size of at least 1"):
        T.fft.irfft(T.tensor("complex64", (3, 1)))
    with pytest.raises(TypeMismatch, match="a real tensor"):
        T.fft.rfft(T.cmatrix())
    f = symdnn.function([x], T.fft.fft(x))
    with pytest.raises(ShapeMismatch, match="at least one element"):
        f(np.zeros((3, 0), "float32"))
    with pytest.raises(OptionError, match="'ortho' or 'no_norm'"):
        theano_fft.rfft(x, "forward")
