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


def test_separable_convolution_of_volumes(theano, T):
    from scipy.signal import convolve
    from theano.tensor.nnet.abstract_conv import separable_conv3d

    rng = np.random.default_rng(3)
    x, deep, point = (rng.standard_normal(s) for s in [(2, 2, 4, 5, 4), (4, 1, 2, 3, 2), (3, 4)])
    x5, d5, p5 = (T.TensorType("float64", (False,) * 5)() for _ in range(3))
    f = theano.function([x5, d5, p5], separable_conv3d(x5, d5, p5, num_channels=2))
    first = [[convolve(v[c // 2], deep[c, 0], "valid") for c in range(4)] for v in x]
    wanted = np.einsum("oc,nczyx->nozyx", point, np.array(first))
    np.testing.assert_allclose(f(x, deep, point[:, :, None, None, None]), wanted)


def test_ctc_by_the_name_of_the_gpus_op(theano, T):
    from theano.gpuarray.ctc import GpuConnectionistTemporalClassification, gpu_ctc
    from theano.tensor.nnet.ctc import ctc

    x, labels, lengths = T.ftensor3(), T.imatrix(), T.ivector()
    losses = [
        c(x, labels, lengths) for c in (ctc, gpu_ctc, GpuConnectionistTemporalClassification())
    ]
    values = np.random.default_rng(4).standard_normal((5, 1, 4)).astype("float32")
    log_p = values[:, 0] - np.log(np.exp(values[:, 0]).sum(1, keepdims=True))
    paths = np.stack(np.meshgrid(*[range(4)] * 5, indexing="ij"), -1).reshape(-1, 5)
    total = 0.0
    for path in paths:  # all that spell 1, 2 with blanks (0) and repetitions
        kept = [int(p) for i, p in enumerate(path) if i == 0 or p != path[i - 1]]
        if [p for p in kept if p] == [1, 2]:
            total += np.exp(log_p[range(5), path].sum())
    for got in theano.function([x, labels, lengths], losses)(values, [[1, 2]], [5]):
        np.testing.assert_allclose(got, [-np.log(total)], rtol=1e-5)
