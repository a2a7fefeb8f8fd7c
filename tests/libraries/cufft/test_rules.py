"""Each rewrite for cuFFT: that it fires, a near miss, values."""

from __future__ import annotations

import numpy as np

import symdnn.tensor as T
from symdnn.ops.fourier.transform import FFT, InverseRealFFT, RealFFT, Transform
from symdnn.opt.phases import Selection
from tests.opt.lowering import CPU, assert_same_values, rewritten, variables

RNG = np.random.default_rng(4)
X = RNG.standard_normal((2, 3, 4, 6))
Z = X + 1j * RNG.standard_normal(X.shape)


def transforms(build, array, **words):
    """The transforms of a rewritten graph, whose values are those of the plain one."""
    vs = variables([array])
    outs = [build(*vs)]
    fgraph = rewritten(vs, outs, **words)
    assert_same_values(fgraph, vs, outs, [array], 1e-9)
    return [n.op for n in fgraph.toposort() if isinstance(n.op, Transform)]


def test_a_scale_becomes_a_product():
    assert transforms(lambda z: T.fft.ifft(z), Z) == [FFT((3,), inverse=True)]
    assert transforms(lambda z: T.fft.fft2(z, norm="ortho"), Z) == [FFT((2, 3))]
    assert transforms(lambda z: T.fft.irfft(z, 7), Z) == [InverseRealFFT((3,), size=7)]
    assert transforms(lambda z: T.fft.irfft(z, z.shape[0]), Z) == [InverseRealFFT((3,))]
    # The processor's library scales as it goes.
    assert transforms(lambda z: T.fft.ifft(z), Z, target=CPU) == [FFT((3,), "full", inverse=True)]


def test_a_transform_of_reals_is_one_of_complex_numbers():
    vs = variables([X])
    (node,) = (n for n in rewritten(vs, [T.fft.fft(*vs)]).toposort() if isinstance(n.op, Transform))
    assert node.inputs[0].type.dtype == "complex128"
    assert transforms(lambda x: T.fft.fft(x), X) == [FFT((3,))]
    assert transforms(lambda x: T.fft.rfft(x), X) == [RealFFT((3,))]


def test_more_than_three_axes_are_parts():
    assert transforms(T.fft.fftn, Z) == [FFT((1, 2, 3)), FFT((3,))]
    assert transforms(T.fft.rfftn, X) == [RealFFT((1, 2, 3)), FFT((3,))]
    inverse = transforms(lambda z: T.fft.irfftn(z, (4, 6), (2, 3)), Z)
    assert inverse == [FFT((3,), inverse=True), InverseRealFFT((3,), size=6)]
    assert transforms(lambda z: T.fft.fftn(z, axes=(1, 2, 3)), Z) == [FFT((1, 2, 3))]


def test_other_axes_are_made_the_last_ones():
    vs = variables([Z])
    fgraph = rewritten(vs, [T.fft.fft(vs[0], axis=1)])
    found = [type(n.op).__name__ for n in fgraph.toposort()]
    assert [n for n in found if "Host" not in n] == ["DimShuffle", "FFT", "DimShuffle"]
    assert transforms(lambda z: T.fft.fftn(z, axes=(2, 0)), Z) == [FFT((2, 3))]
    assert transforms(lambda x: T.fft.rfftn(x, axes=(3, 1)), X) == [RealFFT((2, 3))]
    vs = variables([Z])
    found = [type(n.op).__name__ for n in rewritten(vs, [T.fft.fft(vs[0])]).toposort()]
    assert "DimShuffle" not in found


def test_they_can_be_switched_off():
    selection = Selection(frozenset({"fast_run", "fast_compile"})).excluding("fuse", "cufft")
    assert transforms(T.fft.ifft, Z, selection=selection) == [FFT((3,), "full", inverse=True)]
