"""Which kernel runs a oneDNN op: the generated one where it is faster, else oneDNN's."""

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.cpu.execution.runtime import runtime
from symdnn.cpu.nest.norms import NormGradKernel
from symdnn.cpu.pool.pool import PoolKernel
from symdnn.cpu.pool.pool_nhwc import PoolNhwcKernel
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.nn.pool import Pool
from symdnn.ops.vendor.onednn import OneDnnPool
from tests.cpu.harness import needs_compiler
from tests.seeded import new_rng

pytestmark = needs_compiler


def first(op, shape):
    """The call on this shape, and the first kernel that does not refuse it."""
    given = TensorType("float32", shape)
    (out,) = op.infer(given)
    runtime()  # which enters all kernels
    call = Call(op, (given,), (out,), NO_HINTS)
    return call, next(k for k in kernels_for(type(op), "cpu") if k.refuses(call) is None)


def test_planes_in_c_order_are_pooled_by_the_generated_kernel():
    op = OneDnnPool(Pool((2, 2), (2, 2), (0, 0), "max", True))
    call, kernel = first(op, (8, 3, 24, 24))
    assert kernel.name == PoolKernel.name
    assert kernel.refuses(call) is None
    x = new_rng().normal(size=(8, 3, 24, 24)).astype("float32")
    out = np.full((8, 3, 12, 12), 7, "float32")
    assert kernel.workspace_bytes(call) == 0
    kernel.bind(call)([x], [out])
    np.testing.assert_array_equal(out, x.reshape(8, 3, 12, 2, 12, 2).max((3, 5)))


def test_images_with_channels_last_are_pooled_by_a_kernel_of_their_own():
    last = OneDnnPool(Pool((2, 2), (2, 2), (0, 0), "max", True), layout="NHWC")
    call, kernel = first(last, (8, 24, 24, 3))
    assert kernel.name == PoolNhwcKernel.name
    planes = kernels_for(OneDnnPool, "cpu")[1]
    assert "NHWC" in planes.refuses(call)


def test_gradients_of_long_normalised_rows_are_the_generated_kernels(rng):
    x, d, w = T.fmatrix("x"), T.fmatrix("d"), T.fvector("w")
    y = T.nnet.layer_norm(x, w, w)
    f = symdnn.function([x, w, d], symdnn.Lop(y, [x, w], d), mode=symdnn.Mode(target="cpu"))
    g = symdnn.function([x, w, d], symdnn.Lop(y, [x, w], d), mode=symdnn.Mode(optimizer="None"))
    for shape, name in (((3, 20000), NormGradKernel.name), ((250, 600), "onednn.layer_norm")):
        arrays = [rng.normal(size=s).astype("float32") for s in (shape, shape[1:], shape)]
        for got, want in zip(f(*arrays), g(*arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
        assert name in f.lowering_report().kernels()
