"""Layer, group and instance norm by nests, against the references in float64."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu import prefer_generated
from symdnn.cpu.compiler import jit
from symdnn.cpu.nest.norms import NormGradKernel, NormKernel
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled

CASES = [
    ((5, 70), (1,), (1, 70)), ((3, 4, 500), (2,), (1, 1, 500)), ((7, 300), (0,), (1, 300)),
    ((6, 8, 9, 4), (2, 3), (1, 8, 1, 1)), ((2, 3, 4, 50), (1, 3), (1, 3, 4, 1)),
    ((1, 20000), (1,), (1, 1)), ((200, 70), (1,), (1, 70)), ((9, 3, 4, 50), (2, 3), (1, 3, 4, 1)),
    ((70, 3, 33), (1, 2), (1, 3, 33)),
]  # fmt: skip
CLOSE = {"float64": 1e-12, "float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}


def results(kernel, op, arrays):
    """The kernel's, for one thread and for three, which are the same bits; the reference's."""
    dtype = arrays[0].dtype
    wanted = op.reference(*(a.astype("float64") for a in arrays))
    own = "float32" if dtype.itemsize == 2 else dtype.name
    types = [TensorType(own if k else dtype.name, w.shape) for k, w in enumerate(wanted)]
    found = []
    for count in (1, 3):
        with config.change_flags(**{"openmp.threads": count}):
            found.append(launched(kernel, call_of(op, arrays, *types), arrays))
    for one, three in zip(*found):
        assert one.tobytes() == three.tobytes()
    return found[0], wanted


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(("shape", "axes", "parameter"), CASES)
def test_forward_and_backward(rng, shape, axes, parameter, dtype):
    own = "float32" if numpy_dtype(dtype).itemsize == 2 else dtype
    x, dy = ((rng.normal(size=shape) + 2).astype(numpy_dtype(dtype)) for _ in range(2))
    gamma, beta = (rng.normal(size=parameter).astype(own) for _ in range(2))
    for given in (x, np.asfortranarray(x), x[::-1]):
        op = LayerNorm(axes, 1e-3)
        found, wanted = results(NormKernel(), op, [given, gamma, beta])
        for a, b in zip(found, wanted):
            np.testing.assert_allclose(a.astype("f8"), b, rtol=CLOSE[dtype], atol=CLOSE[dtype] * 4)
        mean, invstd = (w.astype(own) for w in wanted[1:])
        arrays = [given, dy, gamma, mean, invstd]
        found, wanted = results(NormGradKernel(), LayerNormGrad(axes, 1e-3), arrays)
        for a, b in zip(found, wanted):
            size = CLOSE[dtype] * max(1.0, np.abs(b).max())
            np.testing.assert_allclose(a.astype("f8"), b, rtol=CLOSE[dtype], atol=4 * size)


@pytest.mark.parametrize(("length", "halves", "ours"), [
    (384, True, True), (512, True, False), (512, False, True), (2048, False, True),
    (4096, False, False),
])  # fmt: skip
def test_which_gradients_run_in_place_of_onednn(monkeypatch, length, halves, ours):
    monkeypatch.setattr(jit, "halves_vectors", lambda: halves)
    types = [TensorType("float32", (512, length))] * 3
    call = Call(LayerNormGrad((1,), 1e-5), tuple(types), (types[0],), NO_HINTS)
    assert (prefer_generated._long_rows(call) is None) is ours


def test_not_a_number_stays_in_its_row(rng):
    x = rng.normal(size=(4, 2000))
    x[1, 7], x[2, 3] = np.nan, np.inf
    one = np.ones((1, 2000))
    with np.errstate(all="ignore"):
        (y, *_), wanted = results(NormKernel(), LayerNorm((1,), 0.0), [x, one, one])
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted[0]))


def test_what_it_does_not_compute_is_refused():
    x, full = np.zeros((30, 300)), np.zeros((30, 300))
    call = call_of(LayerNormGrad((1,), 1e-3), (x, x, full, x[:, :1], x[:, :1]))
    assert "own parameters" in NormGradKernel().refuses(call)
    assert "elements" in NormKernel().refuses(call_of(LayerNorm((1,), 1e-3), (x[:0], x, x)))


def test_the_gradient_of_a_group_norm(rng):
    x, g, b = T.dtensor4("x"), T.dvector("g"), T.dvector("b")
    y = T.nnet.group_norm(x, 2, g, b)
    arrays = [rng.normal(size=s) for s in ((2, 4, 20, 30), (4,), (4,))]
    mode = symdnn.Mode(target="cpu")
    weights = rng.normal(size=(2, 4, 20, 30))
    f = symdnn.function([x, g, b], symdnn.grad((y * weights).sum(), [x, g, b]), mode=mode)
    value = symdnn.function([x, g, b], (y * weights).sum(), mode=mode)
    found = f(*arrays)
    assert "llvm.norm" in str(f.lowering_report())
    for k, (array, slope) in enumerate(zip(arrays, found)):
        direction, step = rng.normal(size=array.shape), 1e-6
        moved = [
            value(*(a + s * step * direction if i == k else a for i, a in enumerate(arrays)))
            for s in (1, -1)
        ]
        np.testing.assert_allclose(
            (slope * direction).sum(), (moved[0] - moved[1]) / (2 * step), rtol=1e-5
        )
