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


def test_the_oldest_convolution_says_its_shapes(theano, T):
    from theano.tensor.nnet.conv import ConvOp

    x, w = T.tensor4(), T.tensor4()
    for mode in ("valid", "full"):
        for stride in ((1, 1), (2, 3)):
            op = ConvOp(dx=stride[0], dy=stride[1], output_mode=mode)
            y = theano.function([x, w], op(x, w))(np.ones((2, 1, 7, 9)), np.ones((3, 1, 2, 4)))
            assert ConvOp.getOutputShape((7, 9), (2, 4), stride, mode) == y.shape[2:]
    assert ConvOp.getOutputShape((None, 9), (2, 4)) == (None, 6)
    assert ConvOp.has_all_shape((1, 7, 9), (2, 4))
    assert not ConvOp.has_all_shape((1, None, 9), (2, 4))
    assert not ConvOp.has_all_shape((1, 7, 9), (2, 4), nkern=None)


def test_hints_of_matrices(theano, T):
    from theano.sandbox.linalg.ops import matrix_inverse, psd, spectral_radius_bound

    a = RNG.standard_normal((4, 4))
    a = a @ a.T
    m = T.matrix("m")
    inverse, bound = theano.function([m], [matrix_inverse(psd(m)), spectral_radius_bound(m, 6)])(a)
    np.testing.assert_allclose(inverse, np.linalg.inv(a))
    largest = np.linalg.eigvalsh(a)[-1]
    assert largest * (1 - 1e-12) <= bound < 1.03 * largest
    for wrong, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="log2_exponent"):
            spectral_radius_bound(m, wrong)


@pytest.mark.parametrize("given", ["tuple", "constant", "shared"])
def test_steps_of_old_convolutions_of_volumes(theano, T, given):
    from scipy.signal import correlate
    from theano.tensor.nnet.Conv3D import conv3D
    from theano.tensor.nnet.ConvGrad3D import convGrad3D
    from theano.tensor.nnet.ConvTransp3D import convTransp3D

    v, w, b = (RNG.standard_normal(s) for s in [(2, 5, 6, 4, 2), (3, 2, 3, 2, 2), (3,)])
    made = {"tuple": tuple, "constant": T.constant, "shared": theano.shared}[given]
    steps = made(np.array([1, 2, 1]))
    V, W = (T.TensorType("float64", (False,) * 5)() for _ in range(2))
    y = conv3D(V, W, b, steps)
    whole = np.array([[sum(correlate(i[..., c], f[..., c], "valid") for c in range(2)) for f in w]
                      for i in v])  # fmt: skip
    wanted = whole[:, :, :, ::2].transpose(0, 2, 3, 4, 1) + b
    d = RNG.standard_normal(wanted.shape)
    by_w = convGrad3D(V, steps, T.constant(np.array(w.shape)), T.constant(d))
    by_v = convTransp3D(W, np.zeros(2), steps, T.constant(d), T.constant(np.array(v.shape[1:4])))
    got, g_w, g_v = theano.function([V, W], [y, by_w, by_v])(v, w)
    np.testing.assert_allclose(got, wanted)
    for found, at in ((g_w, w), (g_v, v)):
        np.testing.assert_allclose((found * at).sum(), ((wanted - b) * d).sum())
