"""Values where arguments of Theano's ops once changed nothing, and dtypes that programs rely on."""

from __future__ import annotations

import numpy as np
import pytest

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("offset", [-2, 0, 1])
def test_diagonals_by_theanos_ops(theano, T, shape, offset):
    value = RNG.standard_normal(shape)
    x = T.TensorType("float64", (None,) * len(shape))()
    for module in (T, T.nlinalg):
        for axis1 in range(len(shape) + 1):
            for axis2 in range(axis1 + 1, len(shape) + 1):
                made = theano.function([x], module.AllocDiag(offset, axis1, axis2)(x))(value)
                back = np.diagonal(made, offset, axis1, axis2)
                np.testing.assert_array_equal(back, value)
                assert np.count_nonzero(made) == value.size
                y = T.TensorType("float64", (None,) * made.ndim)()
                taken = module.ExtractDiag(offset, axis1, axis2)(y)
                np.testing.assert_array_equal(theano.function([y], taken)(made), value)


def test_known_numbers_of_vectors_made_of_scalars(theano, T):
    b = T.iscalar()
    a = T.stack([b, 2, 3])
    assert [T.get_scalar_constant_value(a[i]) for i in (1, -1)] == [2, 3]
    made = T.opt.make_vector(1, b, 3)
    assert T.get_scalar_constant_value(made[2]) == 3
    for unknown in (a[0], made[1], made, made[b]):
        with pytest.raises(T.NotScalarConstantError):
            T.get_scalar_constant_value(unknown)


def test_dtypes_of_permutations_and_of_nothing(theano, T):
    p = T.ivector()
    inverse = T.inverse_permutation(p)
    found = theano.function([p], inverse)([2, 0, 1])
    assert (inverse.dtype, found.tolist()) == ("int32", [1, 2, 0])
    with theano.change_flags(floatX="float32"):
        assert T.constant([]).dtype == "float32"
    x, y = T.dscalars("x", "y")
    assert theano.function([x, y], T.default(x, y))(1, 2) == 1
    assert theano.function([y], T.default(None, y))(2) == 2
