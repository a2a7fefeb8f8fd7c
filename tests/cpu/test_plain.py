"""Which kernel runs a oneDNN op: the generated one where it is faster, else oneDNN's."""

import numpy as np
import pytest

from symdnn.cpu import jit, threads
from symdnn.cpu.pool import PoolKernel
from symdnn.cpu.runtime import runtime
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.onednn import OneDnnPool, OneDnnSoftmax
from symdnn.ops.pool import Pool
from symdnn.ops.softmax import Softmax

pytestmark = pytest.mark.skipif(
    bool(jit.problem() or threads.problem()), reason="llvmlite or libgomp is missing"
)


def first(op, shape):
    """The call on this shape, and the kernel that is preferred for the op."""
    given = TensorType("float32", shape)
    (out,) = op.infer(given)
    runtime()  # which enters all kernels
    return Call(op, (given,), (out,), NO_HINTS), kernels_for(type(op), "cpu")[0]


def test_planes_in_c_order_are_pooled_by_the_generated_kernel():
    op = OneDnnPool(Pool((2, 2), (2, 2), (0, 0), "max", True))
    call, kernel = first(op, (8, 3, 24, 24))
    assert kernel.name == PoolKernel.name
    assert kernel.refuses(call) is None
    x = np.random.default_rng().normal(size=(8, 3, 24, 24)).astype("float32")
    out = np.full((8, 3, 12, 12), 7, "float32")
    assert kernel.workspace_bytes(call) == 0
    kernel.bind(call)([x], [out])
    np.testing.assert_array_equal(out, x.reshape(8, 3, 12, 2, 12, 2).max((3, 5)))


def test_channels_last_and_long_rows_are_onednns():
    last = OneDnnPool(Pool((2, 2), (2, 2), (0, 0), "max", True), layout="NHWC")
    call, kernel = first(last, (8, 24, 24, 3))
    assert "NHWC" in kernel.refuses(call)
    call, kernel = first(OneDnnSoftmax(Softmax(1)), (4096, 1024))
    assert "as fast" in kernel.refuses(call)
    call, kernel = first(OneDnnSoftmax(Softmax(1)), (128, 10))
    assert kernel.refuses(call) is None
