"""Norms and powers of 16-bit floats, which need no factors of LAPACK's."""

import ml_dtypes
import numpy as np
import pytest
import scipy.spatial

import symdnn
import symdnn.tensor as T
from symdnn.errors import TypeMismatch
from symdnn.nn import functional as F

NORMS = [
    ("norm", {}), ("norm", {"axis": 1}), ("norm", {"ord": "fro", "axis": (0, 1)}),
    ("norm", {"ord": np.inf}), ("vector_norm", {"ord": 1}), ("vector_norm", {"axis": 0}),
    ("matrix_norm", {}), ("matrix_norm", {"ord": 1}), ("matrix_norm", {"ord": -np.inf}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "options"), NORMS, ids=str)
def test_norms_without_a_factorisation_take_16_bits(name, options, dtype):
    """Squares of 300 are above the largest float16."""
    x = T.matrix("x", dtype=dtype)
    array = np.array([[300.0, -300.0, 2.0], [256.0, 0.5, -1.0]])
    found = symdnn.function([x], getattr(T.linalg, name)(x, **options))(
        array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    )
    assert found.dtype == dtype
    wanted = getattr(np.linalg, name)(array, **options)
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=1e-2)


def test_powers_of_16_bits_are_products_and_factors_are_refused():
    x = T.matrix("x", dtype="bfloat16")
    array = np.array([[1, 2], [0, 1]], ml_dtypes.bfloat16)
    found = symdnn.function([x], T.linalg.matrix_power(x, 3))(array)
    assert found.astype(int).tolist() == [[1, 6], [0, 1]]
    factored = [
        lambda: T.linalg.matrix_power(x, -1), lambda: T.linalg.matrix_norm(x, ord=2),
        lambda: T.linalg.norm(x, "nuc"),
    ]  # fmt: skip
    for build in factored:
        with pytest.raises(TypeMismatch, match="no 16-bit floats"):
            build()


OF_SQUARES = {
    "norm": (lambda x, y: T.norm(x, dim=1), lambda x, y: np.linalg.norm(x, axis=1)),
    "a 3-norm": (lambda x, y: T.norm(x, p=3, dim=1), lambda x, y: np.linalg.norm(x, 3, axis=1)),
    "std": (lambda x, y: T.std(x, axis=1), lambda x, y: x.std(axis=1)),
    "std of a sample": (lambda x, y: T.std(x, dim=1), lambda x, y: x.std(axis=1, ddof=1)),
    "pairwise_distance": (
        lambda x, y: F.pairwise_distance(x, y), lambda x, y: np.linalg.norm(x - y, axis=1)
    ),
    "triplet_margin_loss": (
        lambda x, y: F.triplet_margin_loss(x, y, x, reduction="none", eps=0.0),
        lambda x, y: np.linalg.norm(x - y, axis=1) + 1,
    ),
    "cdist": (lambda x, y: T.cdist(x, y), scipy.spatial.distance.cdist),
    "cosine_similarity": (
        lambda x, y: F.cosine_similarity(x, y),
        lambda x, y: (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1),
    ),
    "corrcoef": (lambda x, y: T.corrcoef(x), lambda x, y: np.corrcoef(x)),
    "corrcoef of two": (lambda x, y: T.corrcoef(x, y), np.corrcoef),
    "lp_pool1d": (
        lambda x, y: F.lp_pool1d(x[:, None], 2, 3)[:, 0, 0], lambda x, y: np.linalg.norm(x, axis=1)
    ),
    "lp_pool2d": (
        lambda x, y: F.lp_pool2d(x[None, None], 3, (1, 3))[0, 0, :, 0],
        lambda x, y: np.abs((x**3).sum(1)) ** (1 / 3) * ((x**3).sum(1) > 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SQUARES)
def test_roots_of_squares_do_not_overflow_in_float16(name):
    """Nor does a gradient, and cosines of zeros are 0."""
    x, y = (T.matrix(n, dtype="float16") for n in "xy")
    ours, theirs = OF_SQUARES[name]
    a, b = np.array([[300.0, -300, 2], [256, 0, -1]]), np.array([[1.0, 2, 300], [-256, 0, -1]])
    value = ours(x, y)
    f = symdnn.function([x, y], [value, T.grad(value.sum(), x)], on_unused_input="ignore")
    found, slope = f(a.astype("float16"), b.astype("float16"))
    assert found.dtype == slope.dtype == "float16"
    np.testing.assert_allclose(found.astype("float64"), theirs(a, b), rtol=2e-3)
    assert np.isfinite(slope).all()
    if "corrcoef" not in name:  # constants have no correlation
        assert np.isfinite(f(np.zeros((2, 3), "float16"), b.astype("float16"))[0]).all()
